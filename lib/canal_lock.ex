defmodule CanalLock do
  # The parts of the README between MDOC marks, so that both have one text. Their sessions run as doctests.
  readme = Path.expand("../README.md", __DIR__)
  @external_resource readme
  @moduledoc readme
             |> File.read!()
             |> String.split("<!-- MDOC !-->\n")
             |> Enum.drop(1)
             |> Enum.take_every(2)
             |> Enum.join("\n")

  @typedoc """
  What is limited: any term, compared with `===`.
  """
  @type key :: :canal_lock.key()

  @typedoc """
  Permits that each bucket bears. A call may bring any non-negative integer, and nobody is admitted with 0.
  """
  @type max_per :: non_neg_integer

  @typedoc """
  Buckets that there are at the moment. A call may bring any non-negative integer, and nobody is admitted with 0.
  """
  @type buckets :: non_neg_integer

  @typedoc """
  `:max_per`, a positive integer, has to be there. It is shown by `info/0` and decides nothing: each call brings its
  own.

  With `keep_on_crash: true`, the table of a manager that crashes goes on, and the next manager adopts it.

  An idle key is gone after two intervals of `:sweep_interval_ms` (5000).
  """
  @type option :: {:max_per, pos_integer} | {:keep_on_crash, boolean} | {:sweep_interval_ms, pos_integer}

  @typedoc """
  What `info/0` tells: what the table is and costs, and what has happened since it was opened.
  """
  @type info :: :canal_lock.info()

  @doc """
  A child of a supervisor: a manager that is restarted whenever it ends, and keeps its table when it crashes.

  Takes the options of `start_link/1`, but with `keep_on_crash: true` unless they say otherwise. Raises `ArgumentError`
  if one is wrong.

      iex> CanalLock.child_spec(max_per: 3).start
      {CanalLock, :start_link, [[max_per: 3, keep_on_crash: true]]}
  """
  @spec child_spec([option]) :: Supervisor.child_spec()
  def child_spec(options) do
    {max_per, others} = checked(options)
    others = Keyword.put_new(others, :keep_on_crash, true)

    %{
      id: __MODULE__,
      start: {__MODULE__, :start_link, [[{:max_per, max_per} | others]]},
      modules: [:canal_lock_manager]
    }
  end

  @doc """
  Starts the manager, linked to the caller and registered as `:canal_lock`. There is one to a node.

  Options are `t:option/0`. The table is empty at first, unless one has been kept: see `:canal_lock.start_link/2`.
  Answers `{:error, {:already_started, pid}}` if a manager is running, and raises `ArgumentError` if an option is wrong.

      iex> {:error, {:already_started, manager}} = CanalLock.start_link(max_per: 3)
      iex> manager == Process.whereis(:canal_lock)
      true

      iex> CanalLock.start_link(max_per: 0)
      ** (ArgumentError) max_per is not a positive integer: 0

      iex> CanalLock.start_link(sweep_interval_ms: 1000)
      ** (ArgumentError) the option :max_per is missing, a positive integer
  """
  @spec start_link([option]) :: {:ok, pid} | {:error, term}
  def start_link(options) do
    {max_per, others} = checked(options)
    :canal_lock.start_link(max_per, Map.new(others))
  end

  defp checked(options) do
    Keyword.keyword?(options) ||
      raise ArgumentError, "not a keyword list of options such as [max_per: 3]: #{inspect(options)}"

    {given, others} =
      options
      |> Keyword.validate!([:max_per, :keep_on_crash, :sweep_interval_ms])
      |> Keyword.split([:max_per])

    max_per =
      case given do
        [max_per: max_per] -> max_per
        [] -> raise ArgumentError, "the option :max_per is missing, a positive integer"
      end

    case :canal_lock_errors.faults(:start_link, [max_per, Map.new(others)]) do
      %{1 => fault} -> raise ArgumentError, "max_per is #{fault}: #{inspect(max_per)}"
      %{2 => fault} -> raise ArgumentError, "#{fault}: #{inspect(others)}"
      _ -> {max_per, others}
    end
  end

  @doc """
  Stops the manager. The table is closed: all permits are void, and calls raise until the next start.

  One that has a supervisor is started again by it, with an empty table. Exits with `:noproc` if there is no manager.
  """
  @spec stop() :: :ok
  defdelegate stop(), to: :canal_lock

  @doc """
  Takes a permit of `key` for the calling process, if fewer than `max_per * buckets` are out.

  Answers `{:acquired, n}`, `n` permits being out, or `:full`. A process may take several.

      iex> CanalLock.acquire(:db, 1, 2)
      {:acquired, 1}
      iex> CanalLock.acquire(:db, 1, 2)
      {:acquired, 2}
      iex> CanalLock.acquire(:db, 1, 2)
      :full

  Raises `ArgumentError` if an argument is wrong or canal_lock is not started, and `SystemLimitError` if there is no
  memory. Costs some tens of nanoseconds, whatever `buckets` is and however much is held; `:canal_lock.acquire/3` says
  more.
  """
  @spec acquire(key, max_per, buckets) :: {:acquired, pos_integer} | :full
  defdelegate acquire(key, max_per, buckets), to: :canal_lock

  @doc """
  Gives one permit of `key` back; `{:error, :not_held}` if the calling process holds none.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.release(:db)
      :ok
      iex> CanalLock.release(:db)
      {:error, :not_held}

  Raises and costs as `acquire/3`.
  """
  @spec release(key) :: :ok | {:error, :not_held}
  defdelegate release(key), to: :canal_lock

  @doc """
  Gives one permit of `key` back, if the calling process holds one. If not, nothing changes, the answer is `:ok` all the
  same, and the logger hears of the mistake.

  `max_per` and `buckets` are checked, and decide nothing: this is the call of the original. Raises and costs as
  `acquire/3`; a report costs milliseconds.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.release(:db, 3, 1)
      :ok
  """
  @spec release(key, max_per, buckets) :: :ok
  defdelegate release(key, max_per, buckets), to: :canal_lock

  @doc """
  Calls `fun` with a permit of `key`, which is given back however `fun` ends: when it returns, raises, throws or exits,
  and when the process is killed.

  Answers `{:ok, result}`, or `:full` without having called `fun`.

      iex> CanalLock.with_permit(:db, 3, 1, fn -> CanalLock.count(:db) end)
      {:ok, 1}
      iex> CanalLock.with_permit(:db, 3, 0, fn -> raise "never called" end)
      :full

  Raises and costs as `acquire/3` and `release/1`.
  """
  @spec with_permit(key, max_per, buckets, (() -> result)) :: {:ok, result} | :full when result: var
  defdelegate with_permit(key, max_per, buckets, fun), to: :canal_lock

  @doc """
  As `acquire/3`, in the table of another node.

  It is released when the calling process dies or the connection is lost. Exits as `GenServer.call/3` does if the node
  or its manager is not there; then nothing was acquired. Costs two round trips. `:canal_lock.acquire_on/4` has the
  details.

      iex> CanalLock.acquire_on(node(), :db, 3, 1)
      {:acquired, 1}
  """
  @spec acquire_on(node, key, max_per, buckets) :: {:acquired, pos_integer} | :full
  defdelegate acquire_on(node, key, max_per, buckets), to: :canal_lock

  @doc """
  As `release/1`, of a permit that the calling process has acquired by `acquire_on/4`. If it exits, call it again.

      iex> {:acquired, 1} = CanalLock.acquire_on(node(), :db, 3, 1)
      iex> CanalLock.release_on(node(), :db)
      :ok
  """
  @spec release_on(node, key) :: :ok | {:error, :not_held}
  defdelegate release_on(node, key), to: :canal_lock

  @doc """
  How many permits of `key` are out.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> {CanalLock.count(:db), CanalLock.count(:nobodys)}
      {1, 0}

  Raises as `acquire/3`. Cost: constant.
  """
  @spec count(key) :: non_neg_integer
  defdelegate count(key), to: :canal_lock

  @doc """
  The permits of `key` that are out, as buckets of `max_per`, a positive integer. Empty buckets are not shown.

      iex> for _ <- 1..4, do: CanalLock.acquire(:db, 3, 2)
      iex> CanalLock.buckets(:db, 3)
      [3, 1]

  Raises as `acquire/3`. Cost: the length of the answer.
  """
  @spec buckets(key, pos_integer) :: [pos_integer]
  defdelegate buckets(key, max_per), to: :canal_lock

  @doc """
  Who holds permits of `key`, and how many; in no order. A fair snapshot, exact when nothing is going on.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.holders(:db) == [{self(), 1}]
      true

  Raises as `acquire/3`. Cost: looks at the holders of all keys, about 0.1 ms for a thousand processes.
  """
  @spec holders(key) :: [{pid, pos_integer}]
  defdelegate holders(key), to: :canal_lock

  @doc """
  What the calling process holds, in no order.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.held()
      [db: 1]

  Raises as `acquire/3`. Cost: a call on a dirty scheduler, and the length of the answer.
  """
  @spec held() :: [{key, pos_integer}]
  defdelegate held(), to: :canal_lock

  @doc """
  What a process holds here, in no order; it may be one on another node. Raises and costs as `held/0`.

      iex> CanalLock.held(Process.whereis(:canal_lock))
      []
  """
  @spec held(pid) :: [{key, pos_integer}]
  defdelegate held(pid), to: :canal_lock

  @doc """
  All keys that have permits out, each with their number; in no order. A fair snapshot, exact when nothing is going on.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.keys()
      [db: 1]

  Raises as `acquire/3`. Cost: looks at all keys, about a second for a million; calls go on meanwhile.
  """
  @spec keys() :: [{key, pos_integer}]
  defdelegate keys(), to: :canal_lock

  @doc """
  What the table is and costs, and what has happened in it. `t::canal_lock.info/0` says what each number means.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> %{max_per: 3, keys: 1, permits: 1, holders: 1} = CanalLock.info()
      iex> CanalLock.info() |> Map.keys() |> Enum.sort()
      [:barriers_refused, :given_back, :granted, :holders, :keys, :max_per,
       :memory, :not_held, :permits, :reclaimed, :refused, :released]

  Raises as `acquire/3`. Cheap enough to be asked each second.
  """
  @spec info() :: info
  defdelegate info(), to: :canal_lock

  @doc """
  Keys whose count differs from what their holders have on record, as `{key, counted, held}`. When nothing is going on
  there are none, or there is a bug in canal_lock.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.audit()
      []

  Raises as `acquire/3`. Cost: some seconds for a million keys; calls go on meanwhile.
  """
  @spec audit() :: [{key, counted :: non_neg_integer, held :: non_neg_integer}]
  defdelegate audit(), to: :canal_lock

  @doc """
  Shows what goes on in the table, in plain text, until Enter is pressed: for people, in a shell, also in one that is
  attached to a running node. What `info/0` counts, by the second; and the keys and the processes with most permits.

  Options, a keyword list: `:interval_ms` (1000) is how long to wait between two looks, and `:rows` (10) how many keys,
  and how many holders, to show at most. Keys are shown by `inspect/2`.

  Raises `ArgumentError` if an option is wrong or canal_lock is not started. `:canal_lock.top/1` says what each number
  is, and what a look costs.

      iex> {:ok, screen} = StringIO.open("")
      iex> Process.group_leader(self(), screen)
      iex> {:acquired, 1} = CanalLock.acquire({MyApp, "db"}, 3, 1)
      iex> CanalLock.top(interval_ms: 1)
      :ok
      iex> {_, shown} = StringIO.contents(screen)
      iex> shown =~ ~s(1  {MyApp, "db"})
      true
  """
  @spec top([{:interval_ms, pos_integer} | {:rows, pos_integer}]) :: :ok
  def top(options \\ []) do
    Keyword.keyword?(options) ||
      raise ArgumentError, "not a keyword list of options such as [rows: 20]: #{inspect(options)}"

    options = options |> Keyword.validate!([:interval_ms, :rows]) |> Map.new()

    case :canal_lock_errors.faults(:top, [options]) do
      %{1 => fault} -> raise ArgumentError, "#{fault}: #{inspect(Enum.to_list(options))}"
      _ -> :canal_lock.top(Map.put(options, :show, &show/1))
    end
  end

  # As much of it as may be shown on a line.
  defp show(term) do
    inspect(:canal_lock_text.pruned(term), limit: 30, printable_limit: 250, width: :infinity)
  end
end
