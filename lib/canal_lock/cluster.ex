defmodule CanalLock.Cluster do
  @moduledoc """
  Concurrency limits for a whole cluster. A limit is for the permits of a key that all nodes together have in use.

      members = [:"a@host1", :"b@host2", :"c@host3"]
      children = [{CanalLock.Cluster, members: members, state_file: "/var/lib/my_app/state.canal_lock"}]

  The child starts `CanalLock.Quorum` too, with the same options, unless it runs. Then:

      iex> CanalLock.Cluster.with_permit(:api, 50, [timeout_ms: 5000], fn -> :called end)
      {:ok, :called}

  Each node has a share of the limit of a key. A call acquires from the share of its node, without a message to another
  node. If the share is used up, the node asks the allocator for more: the member that divides the limits.

  Calls answer `{:error, :no_quorum}` while this node reaches no quorum of the members. When its permits are lost,
  because it was cut off for too long, each holder gets the message `{:canal_lock_cluster, :lost, key}`.
  `:canal_lock_cluster` is the same API in Erlang, and explains sessions and limits.
  """

  @typedoc "What permits are counted for. Separate from the keys of `CanalLock`."
  @type key :: CanalLock.key()

  @typedoc "`n` is the number of valid permits in use on this node, the new ones included."
  @type answer :: {:acquired, n :: pos_integer} | :full | {:error, :no_quorum}

  @typedoc "The answer of a call with a function, which is called only with a permit."
  @type result(value) :: {:ok, value} | :full | {:error, :no_quorum}

  @doc """
  The child specification of the cluster permits of this node, for a supervisor. Takes the options of `start_link/1`.

      iex> CanalLock.Cluster.child_spec(members: [node()]).start
      {CanalLock.Cluster, :start_link, [[members: [node()]]]}
  """
  @spec child_spec([CanalLock.Quorum.option()]) :: Supervisor.child_spec()
  def child_spec(options) do
    %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, type: :supervisor, shutdown: :infinity}
  end

  @doc """
  Starts the cluster permits of this node, linked to the caller. Options, answers and errors are those of
  `CanalLock.Quorum.start_link/1`. The application `:canal_lock` must run, or its table must be open otherwise.

      iex> CanalLock.Cluster.start_link(members: [])
      ** (ArgumentError) the option :members must be a list of 1 to 16 nodes, got: []
  """
  @spec start_link([CanalLock.Quorum.option()]) :: {:ok, pid} | {:error, term}
  def start_link(options), do: options |> CanalLock.Options.quorum!() |> :canal_lock_cluster.start_link()

  @doc """
  Stops the cluster permits of this node, and the quorum locks that were started with them. Permits are lost, and other
  nodes get them at once. A supervisor restarts it.
  """
  @spec stop() :: :ok
  defdelegate stop(), to: :canal_lock_cluster

  @doc """
  Acquires a permit of `key` for the calling process, if fewer than `limit` are in use in the cluster. Answers, raises
  and costs as `acquire/3`.

      iex> CanalLock.Cluster.acquire(:api, 0)
      :full
  """
  @spec acquire(key, limit :: non_neg_integer) :: answer
  defdelegate acquire(key, limit), to: :canal_lock_cluster

  @doc """
  Acquires a permit of `key` for the calling process, if fewer than `max_per * buckets` are in use in the cluster.

      iex> {:acquired, 2} = CanalLock.Cluster.acquire(:api, 1, 2, timeout_ms: 5000, permits: 2)
      iex> CanalLock.Cluster.acquire(:api, 1, 2)
      :full

  With a keyword list in the place of `buckets`, it is `acquire/4` with one bucket.

      iex> CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000)
      {:acquired, 1}

  Raises `ArgumentError` if an argument is wrong, or if the cluster permits are not started on this node. Cost: 160 ns
  with the release, while the share of this node has a free permit; otherwise a round trip, of at most 100 ms.
  `:canal_lock_cluster.acquire/3` has the details.
  """
  @spec acquire(key, CanalLock.max_per(), CanalLock.buckets() | CanalLock.wait_options()) :: answer
  def acquire(key, limit, options) when is_list(options), do: acquire(key, limit, 1, options)
  def acquire(key, max_per, buckets), do: :canal_lock_cluster.acquire(key, max_per, buckets)

  @doc """
  As `acquire/3`, and waits while the permits are in use. The last argument is a timeout in milliseconds, `:infinity`,
  or options; see `t:CanalLock.wait/0`. With the timeout 0, it waits for no answer of another node.

      iex> CanalLock.Cluster.acquire(:api, 25, 2, 5000)
      {:acquired, 1}
      iex> CanalLock.Cluster.acquire(:api, 25, 2, timeout_ms: 5000, permits: 49)
      {:acquired, 50}
      iex> CanalLock.Cluster.acquire(:api, 25, 2, 0)
      :full
  """
  @spec acquire(key, CanalLock.max_per(), CanalLock.buckets(), CanalLock.wait()) :: answer
  def acquire(key, max_per, buckets, timeout_or_options) do
    :canal_lock_cluster.acquire(key, max_per, buckets, CanalLock.Options.wait!(timeout_or_options))
  end

  @doc """
  Releases permits of `key` that the calling process holds, lost or not: all or none. Releases one without options.

      iex> {:acquired, 3} = CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000, permits: 3)
      iex> {CanalLock.Cluster.release(:api), CanalLock.Cluster.release(:api, permits: 2)}
      {:ok, :ok}
      iex> CanalLock.Cluster.release(:api)
      {:error, :not_held}
  """
  @spec release(key, [CanalLock.permits_option()]) :: :ok | {:error, :not_held}
  def release(key, options \\ [])
  def release(key, []), do: :canal_lock_cluster.release(key)
  def release(key, options), do: :canal_lock_cluster.release(key, CanalLock.Options.permits!(options))

  @doc """
  Gives permits of `key` to another process of this node, as `CanalLock.give/3`.

      iex> {:acquired, 1} = CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000)
      iex> worker = spawn(fn -> Process.sleep(:infinity) end)
      iex> CanalLock.Cluster.give(:api, worker)
      :ok
      iex> CanalLock.Cluster.holders(:api) == [{worker, 1}]
      true
  """
  @spec give(key, pid, [CanalLock.permits_option()]) :: :ok | {:error, :not_held | :not_alive}
  def give(key, pid, options \\ []), do: :canal_lock_cluster.give(key, pid, CanalLock.Options.permits!(options))

  @doc """
  Calls `fun` with a permit of `key`, acquired as by `acquire/2`: see `with_permit/5`.

      iex> CanalLock.Cluster.with_permit(:api, 0, fn -> raise "never called" end)
      :full
  """
  @spec with_permit(key, limit :: non_neg_integer, (() -> value)) :: result(value) when value: term
  defdelegate with_permit(key, limit, fun), to: :canal_lock_cluster

  @doc """
  Calls `fun` with a permit of `key`, acquired as by `acquire/3`: see `with_permit/5`.

      iex> CanalLock.Cluster.with_permit(:api, 50, [timeout_ms: 5000], fn -> :called end)
      {:ok, :called}
  """
  @spec with_permit(key, CanalLock.max_per(), CanalLock.buckets() | CanalLock.wait_options(), (() -> value)) ::
          result(value)
        when value: term
  def with_permit(key, limit, options, fun) when is_list(options), do: with_permit(key, limit, 1, options, fun)
  def with_permit(key, max_per, buckets, fun), do: :canal_lock_cluster.with_permit(key, max_per, buckets, fun)

  @doc """
  Calls `fun` with permits of `key`, acquired as by `acquire/4`. They are released when `fun` returns, raises, throws or
  exits. `:full` and `{:error, :no_quorum}` mean that `fun` was not called. If the permits are lost while `fun` runs,
  the answer is `{:ok, result}`, too: `fun` can check `session/0`.

      iex> CanalLock.Cluster.with_permit(:api, 25, 2, [timeout_ms: 5000, permits: 2], fn -> :called end)
      {:ok, :called}
  """
  @spec with_permit(key, CanalLock.max_per(), CanalLock.buckets(), CanalLock.wait(), (() -> value)) :: result(value)
        when value: term
  def with_permit(key, max_per, buckets, timeout_or_options, fun) do
    :canal_lock_cluster.with_permit(key, max_per, buckets, CanalLock.Options.wait!(timeout_or_options), fun)
  end

  @doc """
  The lock of the session of this node, or `:none`. If it was read before an acquire, `CanalLock.Quorum.held?/1` tells
  whether the permit is still valid.

      iex> session = CanalLock.Cluster.session()
      iex> {:acquired, 1} = CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000)
      iex> CanalLock.Quorum.held?(session)
      true
  """
  @spec session() :: CanalLock.Quorum.lock() | :none
  defdelegate session(), to: :canal_lock_cluster

  @doc """
  The processes of this node that hold permits of `key`, lost or not, each with their number.

      iex> {:acquired, 2} = CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000, permits: 2)
      iex> CanalLock.Cluster.holders(:api) == [{self(), 2}]
      true
  """
  @spec holders(key) :: [{pid, pos_integer}]
  defdelegate holders(key), to: :canal_lock_cluster

  @doc """
  How the limit of `key` is used in the cluster:
  `t::canal_lock_cluster.usage/0`. Cost: a call to the agent of this node and to the allocator.

      iex> {:acquired, 1} = CanalLock.Cluster.acquire(:api, 50, timeout_ms: 5000)
      iex> {:ok, %{limit: 50, waiting: 0}} = CanalLock.Cluster.usage(:api)
  """
  @spec usage(key) :: {:ok, :canal_lock_cluster.usage()} | {:error, :no_quorum}
  defdelegate usage(key), to: :canal_lock_cluster

  @doc """
  The cluster permits as this node sees them: `t::canal_lock_cluster.status/0`. Costs as `usage/1`.

      iex> %{allocator: allocator, keys: 0, totals: %{refused: 0}} = CanalLock.Cluster.status()
      iex> allocator == node()
      true
  """
  @spec status() :: :canal_lock_cluster.status()
  defdelegate status(), to: :canal_lock_cluster

  @doc """
  Shows the busiest keys of this node until Enter is pressed, with the options of `CanalLock.top/1`: the share of the
  node, the permits in use, and the rates of what moved.

      iex> {:ok, screen} = StringIO.open("")
      iex> Process.group_leader(self(), screen)
      iex> {:acquired, 1} = CanalLock.Cluster.acquire({:api, "v1"}, 50, timeout_ms: 5000)
      iex> CanalLock.Cluster.top(interval_ms: 1)
      :ok
      iex> {_, shown} = StringIO.contents(screen)
      iex> shown =~ ~s(1  {:api, "v1"})
      true
  """
  @spec top([{:interval_ms, pos_integer} | {:rows, pos_integer}]) :: :ok
  def top(options \\ []), do: options |> CanalLock.Options.view!() |> :canal_lock_cluster.top()
end
