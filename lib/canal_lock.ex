defmodule CanalLock do
  alias CanalLock.Options

  # The parts of the README between MDOC marks, so that both have one text. Their sessions run as doctests.
  readme = Path.expand("../README.md", __DIR__)
  @external_resource readme
  @moduledoc readme
             |> File.read!()
             |> String.split("<!-- MDOC !-->\n")
             |> Enum.drop(1)
             |> Enum.take_every(2)
             |> Enum.join("\n")

  @typedoc "What permits are counted for: any term, compared with `===`."
  @type key :: :canal_lock.key()

  @typedoc "Permits per bucket: a non-negative integer of any size. With 0, every acquire answers `:full`."
  @type max_per :: non_neg_integer

  @typedoc "Number of buckets at the moment: a non-negative integer of any size. With 0, every acquire answers `:full`."
  @type buckets :: non_neg_integer

  @typedoc """
  The capacity of a call: a number of permits, or options with `:capacity`, a function that returns
  `{max_per, buckets}`.
  The calling process calls it before the attempt, and again after its request has joined the queue, until two
  capacities in a row are equal. So a process that stores a new capacity and then calls `resize/3` misses no waiter.
  """
  @type limit :: non_neg_integer | [{:capacity, (() -> {max_per, buckets})} | request_option | {:timeout_ms, timeout}]

  @typedoc "A key and its capacity, for a call with several keys."
  @type key_limit :: {key, non_neg_integer} | {key, max_per, buckets}

  @typedoc """
  `:max_per`, a positive integer, is shown by `info/0` and limits nothing: each call passes its own. With
  `keep_on_crash: true`, the table of a manager that crashes stays open, and the next start adopts it.
  `:sweep_interval_ms` (default 5000) is the interval of the sweep in milliseconds. An idle key is reclaimed after two
  intervals. `:max_waiting` (default 100000) is the largest number of requests that wait, of all keys together.
  """
  @type option ::
          {:max_per, pos_integer}
          | {:keep_on_crash, boolean}
          | {:sweep_interval_ms, pos_integer}
          | {:max_waiting, non_neg_integer}

  @typedoc """
  `:permits` (default 1) is the number of permits to acquire, all or none. With `:max_waiting` (default `:infinity`),
  the call does not wait if at least that many requests wait for the key.
  """
  @type request_option :: {:permits, pos_integer} | {:max_waiting, non_neg_integer | :infinity}

  @typedoc "Options of a call that may wait. `:timeout_ms` (default 0) is how long, in milliseconds or `:infinity`."
  @type wait_options :: [request_option | {:timeout_ms, timeout}]

  @typedoc "How long a call may wait: a timeout in milliseconds, or options."
  @type wait :: timeout | wait_options

  @typedoc "`:permits` (default 1) is the number of permits, all or none."
  @type permits_option :: {:permits, pos_integer}

  @typedoc "The answer of `info/0`: the state of the table, and the totals of its events since it was opened."
  @type info :: :canal_lock.info()

  @doc """
  A child specification, for `CanalLock` and `{CanalLock, options}` in a supervision tree. It is needed only if the
  application does not open the table (`config :canal_lock, start: false`), or to keep the table open when the
  application stops. Options are `t:option/0`; `:keep_on_crash` is `true` by default here. If the manager crashes, the
  child's own supervisor restarts it, up to 10 times in 10 seconds. Raises `ArgumentError` if an option is wrong.

      iex> %{id: CanalLock, type: :supervisor} = CanalLock.child_spec([])
      iex> {:ok, supervisor} = Supervisor.start_link([CanalLock], strategy: :one_for_one)
      iex> Supervisor.stop(supervisor)
      :ok
  """
  @spec child_spec([option]) :: Supervisor.child_spec()
  def child_spec(options \\ []), do: :canal_lock_starter.child_spec(__MODULE__, start_options(options))

  @doc """
  Opens the table of this node, and keeps it open while the started process lives. The application does this when it
  starts. The first process to be started is the manager, registered as `:canal_lock`; when it ends, another one goes
  on with the same table. Options are `t:option/0`. Of each but `:keep_on_crash`, the first value that a start has
  given is in force. The table is empty at first, unless a manager has left its table: see `:canal_lock.start_link/1`.
  Raises `ArgumentError` if an option is wrong.

      iex> {:ok, another} = CanalLock.start_link()
      iex> another == Process.whereis(:canal_lock)
      false

      iex> CanalLock.start_link(max_per: 0)
      ** (ArgumentError) the option :max_per must be a positive integer, got: 0
  """
  @spec start_link([option]) :: {:ok, pid} | {:error, term}
  def start_link(options \\ []), do: :canal_lock.start_link(start_options(options))

  defp start_options(options) do
    rules = :canal_lock_errors.start_options()
    wrong_option = &:canal_lock_errors.wrong_option(rules, &1)
    Options.validate!(options, Keyword.keys(rules), "[max_per: 3]", wrong_option)
  end

  @doc """
  Closes the table for all who have opened it. All permits are void, and calls raise until the next start. No supervisor
  of canal_lock opens it again. Exits with `:noproc` if no manager runs.
  """
  @spec stop() :: :ok
  defdelegate stop(), to: :canal_lock

  @doc """
  Acquires a permit of `key` for the calling process, if fewer than `limit` are in use. The limit can be a function; see
  `t:limit/0`. Answers, raises and costs as `acquire/3`.

      iex> CanalLock.acquire(:db, 1)
      {:acquired, 1}
      iex> CanalLock.acquire(:db, capacity: fn -> {1, 2} end, timeout_ms: 200)
      {:acquired, 2}
      iex> CanalLock.acquire(:db, 2)
      :full
  """
  @spec acquire(key, limit) :: {:acquired, pos_integer} | :full
  def acquire(key, limit) when is_list(limit), do: :canal_lock.acquire(key, capacity(limit))
  def acquire(key, limit), do: :canal_lock.acquire(key, limit)

  defp capacity(options) do
    Options.parse!(
      options,
      &:canal_lock_wait.capacity_options/1,
      &:canal_lock_errors.capacity_options/0,
      "[capacity: fn -> {3, 2} end]"
    )
  end

  @doc """
  Acquires a permit of `key` for the calling process, if fewer than `max_per * buckets` are in use. Answers `{:acquired,
  n}`, where `n` is the number of permits in use, or `:full`. A process can hold several permits.

      iex> CanalLock.acquire(:db, 1, 2)
      {:acquired, 1}
      iex> CanalLock.acquire(:db, 1, 2)
      {:acquired, 2}
      iex> CanalLock.acquire(:db, 1, 2)
      :full

  With a keyword list in the place of `buckets`, it is `acquire/4` with one bucket. A number there is a number of
  buckets, not a timeout.

      iex> CanalLock.acquire(:api, 10, timeout_ms: 200)
      {:acquired, 1}

  Raises `ArgumentError` if an argument is wrong or canal_lock is not started, and `SystemLimitError` if memory is
  exhausted. Cost: 20 to 100 ns for short keys in the cache, plus the time to read a longer key. It does not depend on
  `buckets` or on the permits in use. `:canal_lock.acquire/3` has the details.
  """
  @spec acquire(key, max_per, buckets | wait_options) :: {:acquired, pos_integer} | :full
  def acquire(key, limit, options) when is_list(options), do: :canal_lock.acquire(key, limit, wait(options))
  def acquire(key, max_per, buckets), do: :canal_lock.acquire(key, max_per, buckets)

  @doc """
  As `acquire/3`, and waits if the key is full. The last argument is a timeout in milliseconds, `:infinity`, or options;
  see `t:wait/0`.

      iex> CanalLock.acquire(:db, 3, 1, 5000)
      {:acquired, 1}
      iex> CanalLock.acquire(:db, 3, 1, timeout_ms: 5000, permits: 2)
      {:acquired, 3}
      iex> CanalLock.acquire(:db, 3, 1, 10)
      :full

  If no permit is free, the caller joins the queue of the key, first in, first out. A release hands its permit to the
  first waiter. Callers with the same or a smaller capacity cannot overtake it. If the timeout expires, the answer is
  `:full`. If the caller dies, its request ends. The library does not detect processes that wait for each other.

  Raises as `acquire/3`, also if the table closes while the caller waits. Cost: with a free permit, that of `acquire/3`,
  and 50 ns more with a keyword list; otherwise some microseconds. `:canal_lock.acquire/4` has the details.
  """
  @spec acquire(key, max_per, buckets, wait) :: {:acquired, pos_integer} | :full
  def acquire(key, max_per, buckets, timeout_or_options) do
    :canal_lock.acquire(key, max_per, buckets, wait(timeout_or_options))
  end

  # Inlined, so a timeout costs no further call.
  @compile {:inline, wait: 1}
  defp wait(timeout) when is_integer(timeout) or timeout == :infinity, do: timeout
  defp wait(options), do: Options.wait!(options)

  @doc """
  Acquires a permit of `key`, or waits for it without blocking the caller, if `limit` permits are in use. It is
  `request/4` with one bucket. The limit can be a function; see `t:limit/0`.

      iex> {:waiting, ref} = CanalLock.request(:db, 0)
      iex> CanalLock.resize(:db, 1)
      iex> receive do: ({:canal_lock, ^ref, answer} -> answer)
      {:acquired, 1}
  """
  @spec request(key, limit) :: {:acquired, pos_integer} | {:waiting, reference} | :full
  def request(key, limit) when is_list(limit), do: :canal_lock.request(key, capacity(limit))
  def request(key, limit), do: :canal_lock.request(key, limit)

  @doc """
  `request/4` without options. With a keyword list in the place of `buckets`, it is `request/4` with one bucket.

      iex> CanalLock.request(:db, 0, max_waiting: 0)
      :full
  """
  @spec request(key, max_per, buckets | [request_option]) :: {:acquired, pos_integer} | {:waiting, reference} | :full
  def request(key, limit, options) when is_list(options), do: :canal_lock.request(key, limit, request_options(options))
  def request(key, max_per, buckets), do: :canal_lock.request(key, max_per, buckets)

  @doc """
  As `acquire/4`, but the request waits, not the caller. After `{:waiting, ref}`, the caller gets one message:
  `{:canal_lock, ref, {:acquired, n}}`, or `{:canal_lock, ref, :closed}` if the table closes. `cancel/1` ends the
  request before that. Options are `t:request_option/0`. Raises as `acquire/3`.

      iex> {:acquired, 1} = CanalLock.request(:db, 1, 1)
      iex> {:waiting, ref} = CanalLock.request(:db, 1, 1)
      iex> CanalLock.request(:db, 1, 1, max_waiting: 1)
      :full
      iex> CanalLock.release(:db)
      :ok
      iex> receive do: ({:canal_lock, ^ref, answer} -> answer)
      {:acquired, 1}
  """
  @spec request(key, max_per, buckets, [request_option]) :: {:acquired, pos_integer} | {:waiting, reference} | :full
  def request(key, max_per, buckets, options) do
    :canal_lock.request(key, max_per, buckets, request_options(options))
  end

  defp request_options(options) do
    Options.parse!(options, &:canal_lock_wait.request_options/1, &:canal_lock_errors.request_options/0, "[permits: 2]")
  end

  @doc """
  Ends a request of the calling process. `:ok`: it holds nothing because of the request, and no message comes.
  `{:acquired, n}`: the request had been granted. Its message is removed, and the permits are the caller's, to use or
  to release. `{:error, :not_waiting}`: there is no such request, or its message was received. Raises `ArgumentError`
  if the argument is not a reference.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 1, 1)
      iex> {:waiting, ref} = CanalLock.request(:db, 1, 1)
      iex> {CanalLock.cancel(ref), CanalLock.cancel(ref)}
      {:ok, {:error, :not_waiting}}
  """
  @spec cancel(reference) :: :ok | {:acquired, pos_integer} | {:error, :not_waiting}
  defdelegate cancel(ref), to: :canal_lock

  @doc """
  As `resize/3` with one bucket.

      iex> CanalLock.resize(:db, 3)
      :ok
  """
  @spec resize(key, non_neg_integer) :: :ok
  defdelegate resize(key, limit), to: :canal_lock

  @doc """
  Gives all requests that wait for `key` another capacity, `max_per * buckets`, in one step. Call it when the resource
  changes its size. Then the requests that the new capacity admits are granted, the oldest first, before the call
  returns. Raises as `acquire/3`. Cost: as `:canal_lock.resize/3`.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 1, 1)
      iex> {:waiting, ref} = CanalLock.request(:db, 1, 1)
      iex> CanalLock.resize(:db, 1, 2)
      :ok
      iex> receive do: ({:canal_lock, ^ref, answer} -> answer)
      {:acquired, 2}
  """
  @spec resize(key, max_per, buckets) :: :ok
  defdelegate resize(key, max_per, buckets), to: :canal_lock

  @doc """
  The number of requests that wait for `key`. Raises as `acquire/3`. Cost: constant.

      iex> {:waiting, _ref} = CanalLock.request(:db, 0, 1)
      iex> {CanalLock.waiting(:db), CanalLock.waiting(:idle)}
      {1, 0}
  """
  @spec waiting(key) :: non_neg_integer
  defdelegate waiting(key), to: :canal_lock

  @doc """
  Releases one permit of `key`. Answers `{:error, :not_held}` if the calling process holds none. Raises and costs as
  `acquire/3`.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.release(:db)
      :ok
      iex> CanalLock.release(:db)
      {:error, :not_held}
  """
  @spec release(key) :: :ok | {:error, :not_held}
  defdelegate release(key), to: :canal_lock

  @doc """
  As `release/1`, for several permits: all of them, or none with `{:error, :not_held}`.

      iex> {:acquired, 2} = CanalLock.acquire(:db, 3, 1, permits: 2)
      iex> CanalLock.release(:db, permits: 3)
      {:error, :not_held}
      iex> CanalLock.release(:db, permits: 2)
      :ok
  """
  @spec release(key, [permits_option]) :: :ok | {:error, :not_held}
  def release(key, options), do: :canal_lock.release(key, Options.permits!(options))

  @doc """
  Releases one permit of `key`, if the calling process holds one. If it holds none, the answer is `:ok`, nothing
  changes, and the library logs the mistake. `max_per` and `buckets` are checked and have no other effect: this is the
  call of the original `canal_lock`. Raises and costs as `acquire/3`; a report costs milliseconds.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.release(:db, 3, 1)
      :ok
  """
  @spec release(key, max_per, buckets) :: :ok
  defdelegate release(key, max_per, buckets), to: :canal_lock

  @doc """
  Calls `fun` while the caller holds a permit of `key`, if fewer than `limit` are in use. It is `with_permit/4` with one
  bucket. The limit can be a function; see `t:limit/0`.

      iex> CanalLock.with_permit(:db, 1, fn -> CanalLock.with_permit(:db, 1, fn -> :never_called end) end)
      {:ok, :full}
      iex> CanalLock.with_permit(:db, [capacity: fn -> {1, 1} end, timeout_ms: 200], fn -> :called end)
      {:ok, :called}
  """
  @spec with_permit(key, limit, (() -> result)) :: {:ok, result} | :full when result: var
  def with_permit(key, limit, fun) when is_list(limit), do: :canal_lock.with_permit(key, capacity(limit), fun)
  def with_permit(key, limit, fun), do: :canal_lock.with_permit(key, limit, fun)

  @doc """
  Calls `fun` while the caller holds a permit of `key`. The permit is released when `fun` returns, raises, throws or
  exits, and when the process is killed. Answers `{:ok, result}`, or `:full` without calling `fun`. `fun` must not
  release the permit. Raises and costs as `acquire/3` and `release/1`.

      iex> CanalLock.with_permit(:db, 3, 1, fn -> CanalLock.count(:db) end)
      {:ok, 1}
      iex> CanalLock.with_permit(:db, 3, 0, fn -> raise "never called" end)
      :full

  With a keyword list in the place of `buckets`, it is `with_permit/5` with one bucket:

      iex> CanalLock.with_permit(:db, 3, [timeout_ms: 200], fn -> CanalLock.count(:db) end)
      {:ok, 1}
  """
  @spec with_permit(key, max_per, buckets | wait_options, (() -> result)) :: {:ok, result} | :full when result: var
  def with_permit(key, limit, options, fun) when is_list(options) do
    :canal_lock.with_permit(key, limit, wait(options), fun)
  end

  def with_permit(key, max_per, buckets, fun), do: :canal_lock.with_permit(key, max_per, buckets, fun)

  @doc """
  As `with_permit/4`, and waits as `acquire/4`. With `permits: k`, the caller holds `k` permits while `fun` runs.

      iex> CanalLock.with_permit(:db, 3, 1, [timeout_ms: 5000, permits: 2], fn -> CanalLock.count(:db) end)
      {:ok, 2}
  """
  @spec with_permit(key, max_per, buckets, wait, (() -> result)) :: {:ok, result} | :full when result: var
  def with_permit(key, max_per, buckets, timeout_or_options, fun) do
    :canal_lock.with_permit(key, max_per, buckets, wait(timeout_or_options), fun)
  end

  @doc """
  Acquires one permit of each of several keys: all of them, or none with `:full`. In `limits`, a list of
  `t:key_limit/0`, each key occurs once. The last argument is a timeout in milliseconds, `:infinity`, or the options
  `:timeout_ms` and `:max_waiting`; see `t:wait/0`. The timeout is that of the whole call. All calls acquire in one
  order, so they never wait for each other in a circle. Each key is released by `release/1`.
  `:canal_lock.acquire_many/2` has the details.

      iex> CanalLock.acquire_many([{:all, 100}, {{:tenant, 7}, 2}], timeout_ms: 200)
      {:acquired, [1, 1]}
      iex> CanalLock.acquire_many([{:all, 100}, {{:tenant, 7}, 1}])
      :full
      iex> CanalLock.count(:all)
      1
  """
  @spec acquire_many([key_limit], timeout | [{:timeout_ms, timeout} | {:max_waiting, non_neg_integer | :infinity}]) ::
          {:acquired, [pos_integer]} | :full
  def acquire_many(limits, timeout_or_options \\ 0) do
    :canal_lock.acquire_many(limits, many(timeout_or_options))
  end

  defp many(timeout_or_options) do
    Options.wait!(timeout_or_options, &:canal_lock_wait.many_options/1, &:canal_lock_errors.many_options/0)
  end

  @doc """
  Calls `fun` while the caller holds one permit of each key, see `acquire_many/2`. Answers as `with_permit/4`.

      iex> CanalLock.with_permits([{:all, 100}, {{:tenant, 7}, 2}], fn -> CanalLock.count({:tenant, 7}) end)
      {:ok, 1}
  """
  @spec with_permits([key_limit], (() -> result)) :: {:ok, result} | :full when result: var
  defdelegate with_permits(limits, fun), to: :canal_lock

  @doc """
  As `with_permits/2`, and waits as `acquire_many/2`.

      iex> CanalLock.with_permits([{:all, 100}, {{:tenant, 7}, 2}], 200, fn -> CanalLock.count({:tenant, 7}) end)
      {:ok, 1}
  """
  @spec with_permits([key_limit], timeout | keyword, (() -> result)) :: {:ok, result} | :full when result: var
  def with_permits(limits, timeout_or_options, fun) do
    :canal_lock.with_permits(limits, many(timeout_or_options), fun)
  end

  @doc """
  Gives permits of `key` that the calling process holds to another process of this node. After `:ok`, `pid` holds them:
  it releases them, and they are released when it dies. No message is sent to `pid`. Answers `{:error, :not_held}` if
  the caller holds fewer, and `{:error, :not_alive}` if `pid` has died; then nothing has changed. Raises as
  `acquire/3`, and if `pid` is on another node.

      iex> worker = spawn(fn -> Process.sleep(:infinity) end)
      iex> {:acquired, 2} = CanalLock.acquire(:db, 3, 1, permits: 2)
      iex> CanalLock.give(:db, worker, permits: 2)
      :ok
      iex> {CanalLock.held(worker), CanalLock.give(:db, worker)}
      {[db: 2], {:error, :not_held}}
  """
  @spec give(key, pid, [permits_option]) :: :ok | {:error, :not_held | :not_alive}
  def give(key, pid, options \\ []), do: :canal_lock.give(key, pid, Options.permits!(options))

  @doc """
  As `acquire/3`, in the table of another node. The permit is released when the calling process dies or the connection
  between the nodes is lost. Answers `{:error, :timeout}` if the other node has not answered within 5 s; a permit that
  is granted later is released. Exits as `GenServer.call/3` does if the node is not connected or runs no manager; then
  no permit was acquired. Cost: two round trips. `:canal_lock.acquire_on/4` has the details.

      iex> CanalLock.acquire_on(node(), :db, 3, 1)
      {:acquired, 1}
  """
  @spec acquire_on(node, key, max_per, buckets) :: {:acquired, pos_integer} | :full | {:error, :timeout}
  defdelegate acquire_on(node, key, max_per, buckets), to: :canal_lock

  @doc """
  As `acquire_on/4`, and waits as `acquire/4`, in one queue with the callers of that node. If `:full` has not arrived
  100 ms after the timeout, the answer is `{:error, :timeout}`.

      iex> CanalLock.acquire_on(node(), :db, 3, 1, timeout_ms: 5000, permits: 2)
      {:acquired, 2}
  """
  @spec acquire_on(node, key, max_per, buckets, wait) :: {:acquired, pos_integer} | :full | {:error, :timeout}
  def acquire_on(node, key, max_per, buckets, timeout_or_options) do
    :canal_lock.acquire_on(node, key, max_per, buckets, wait(timeout_or_options))
  end

  @doc """
  As `release/1`, for a permit that the calling process has acquired with `acquire_on/4`. If it exits, call it again.
  With `{:error, :timeout}`, the other node has not answered within 5 s, and the release goes on in the background: do
  not repeat it.

      iex> {:acquired, 1} = CanalLock.acquire_on(node(), :db, 3, 1)
      iex> CanalLock.release_on(node(), :db)
      :ok
  """
  @spec release_on(node, key) :: :ok | {:error, :not_held | :timeout}
  defdelegate release_on(node, key), to: :canal_lock

  @doc """
  As `release_on/2`, for several permits: all of them, or none with `{:error, :not_held}`.

      iex> {:acquired, 2} = CanalLock.acquire_on(node(), :db, 3, 1, permits: 2)
      iex> CanalLock.release_on(node(), :db, permits: 2)
      :ok
  """
  @spec release_on(node, key, [permits_option]) :: :ok | {:error, :not_held | :timeout}
  def release_on(node, key, options), do: :canal_lock.release_on(node, key, Options.permits!(options))

  @doc """
  As `release_on/2`, but does not wait for the other node, and always answers `:ok`. Another call can reach that node
  before the release. `:canal_lock.release_on_async/2` has the details.

      iex> {:acquired, 1} = CanalLock.acquire_on(node(), :db, 3, 1)
      iex> CanalLock.release_on_async(node(), :db)
      :ok
  """
  @spec release_on_async(node, key) :: :ok
  defdelegate release_on_async(node, key), to: :canal_lock

  @doc """
  As `release_on_async/2`, for several permits: all of them or none.

      iex> {:acquired, 2} = CanalLock.acquire_on(node(), :db, 3, 1, permits: 2)
      iex> CanalLock.release_on_async(node(), :db, permits: 2)
      :ok
  """
  @spec release_on_async(node, key, [permits_option]) :: :ok
  def release_on_async(node, key, options), do: :canal_lock.release_on_async(node, key, Options.permits!(options))

  @doc """
  Calls `fun` while the caller holds a permit of the table of another node. Acquires as `acquire_on/4`, and answers
  `{:ok, result}`, or `:full` or `{:error, :timeout}` without calling `fun`. The release, however `fun` ends, is
  asynchronous, as `release_on_async/2`.

      iex> CanalLock.with_permit_on(node(), :db, 3, 1, fn -> CanalLock.count(:db) end)
      {:ok, 1}
  """
  @spec with_permit_on(node, key, max_per, buckets, (() -> result)) :: {:ok, result} | :full | {:error, :timeout}
        when result: var
  defdelegate with_permit_on(node, key, max_per, buckets, fun), to: :canal_lock

  @doc """
  As `with_permit_on/5`, and waits as `acquire_on/5`. With `permits: k`, the caller holds `k` permits while `fun` runs.

      iex> CanalLock.with_permit_on(node(), :db, 3, 1, [timeout_ms: 5000, permits: 2], fn -> CanalLock.count(:db) end)
      {:ok, 2}
  """
  @spec with_permit_on(node, key, max_per, buckets, wait, (() -> result)) ::
          {:ok, result} | :full | {:error, :timeout}
        when result: var
  def with_permit_on(node, key, max_per, buckets, timeout_or_options, fun) do
    :canal_lock.with_permit_on(node, key, max_per, buckets, wait(timeout_or_options), fun)
  end

  @doc """
  The number of permits of `key` in use. Raises as `acquire/3`. Cost: constant.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> {CanalLock.count(:db), CanalLock.count(:idle)}
      {1, 0}
  """
  @spec count(key) :: non_neg_integer
  defdelegate count(key), to: :canal_lock

  @doc """
  The permits of `key` in use, as a list of buckets of `max_per`, a positive integer. Empty buckets are left out. More
  than 1,000 buckets raise `SystemLimitError`. Raises as `acquire/3`. Cost: proportional to the length of the answer.

      iex> for _ <- 1..4, do: CanalLock.acquire(:db, 3, 2)
      iex> CanalLock.buckets(:db, 3)
      [3, 1]
  """
  @spec buckets(key, pos_integer) :: [pos_integer]
  defdelegate buckets(key, max_per), to: :canal_lock

  @doc """
  The processes that hold permits of `key`, each with its number of permits, in no order. Exact while no permit is
  acquired or released, otherwise an approximate snapshot. Raises as `acquire/3`. Cost: reads the slots of all
  processes: about 0.1 ms for 1,000 processes, 4 ms when 262,144 slots have been used.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.holders(:db) == [{self(), 1}]
      true
  """
  @spec holders(key) :: [{pid, pos_integer}]
  defdelegate holders(key), to: :canal_lock

  @doc """
  The keys that the calling process holds, each with its number of permits, in no order. Raises as `acquire/3`. Cost:
  a call on a dirty scheduler, and the length of the answer.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.held()
      [db: 1]
  """
  @spec held() :: [{key, pos_integer}]
  defdelegate held(), to: :canal_lock

  @doc """
  The keys that a process holds in the table of this node, in no order. The process can be on another node. Raises and
  costs as `held/0`.

      iex> CanalLock.held(Process.whereis(:canal_lock))
      []
  """
  @spec held(pid) :: [{key, pos_integer}]
  defdelegate held(pid), to: :canal_lock

  @doc """
  How many permits a process holds, of how many keys, and for how long in milliseconds; `:none` if it holds nothing. The
  process can be on another node. `held_ms` counts from its first permit, and is too small by up to one
  `sweep_interval_ms`: `t::canal_lock.holder_info/0` has the details. Raises as `acquire/3`.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> %{permits: 1, keys: 1, held_ms: _} = CanalLock.holder_info(self())
      iex> :ok = CanalLock.release(:db)
      iex> CanalLock.holder_info(self())
      :none
  """
  @spec holder_info(pid) :: :canal_lock.holder_info() | :none
  defdelegate holder_info(pid), to: :canal_lock

  @doc """
  All keys with permits in use, each with its number of permits, in no order. Exact while no permit is acquired or
  released, otherwise an approximate snapshot. Raises as `acquire/3`. Cost: reads all keys, about 1 s per million.
  Other calls are not delayed.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.keys()
      [db: 1]
  """
  @spec keys() :: [{key, pos_integer}]
  defdelegate keys(), to: :canal_lock

  @doc """
  The state of the table, and the totals of its events. `t::canal_lock.info/0` explains each number. Raises as
  `acquire/3`. It is cheap enough to poll once per second.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> %{max_per: 3, keys: 1, permits: 1, holders: 1} = CanalLock.info()
      iex> CanalLock.info() |> Map.keys() |> Enum.sort()
      [:barriers_refused, :granted, :handed_over, :holders, :keys, :longest_wait_us,
       :max_per, :memory, :not_held, :permits, :reclaimed, :refused, :released,
       :released_by_death, :timed_out, :transferred, :wait_us, :waiting]
  """
  @spec info() :: info
  defdelegate info(), to: :canal_lock

  @doc """
  The keys whose count differs from the records of their holders, as `{key, counted, held}`. While no permit is
  acquired or released the answer is empty; otherwise canal_lock has a bug. Raises as `acquire/3`. Cost: several
  seconds for a million keys. Other calls are not delayed.

      iex> {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
      iex> CanalLock.audit()
      []
  """
  @spec audit() :: [{key, counted :: non_neg_integer, held :: non_neg_integer}]
  defdelegate audit(), to: :canal_lock

  @doc """
  Shows the activity of the table as text until Enter is pressed, in a shell, also in one that is attached to a running
  node. It shows the numbers of `info/0`, rates per second, the keys and the holders with most permits, and the keys
  that most requests wait for.

  Options, a keyword list: `:interval_ms` (default 1000) is the pause between two refreshes in milliseconds. `:rows`
  (default 10) is the largest number of rows of each list. Keys are formatted by `inspect/2`.

  Raises `ArgumentError` if an option is wrong or canal_lock is not started. `docs/operating.md` explains each number,
  and `:canal_lock.top/1` the cost of a refresh.

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
    options |> Options.view!() |> :canal_lock.top()
  end
end
