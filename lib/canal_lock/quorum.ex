defmodule CanalLock.Quorum do
  @moduledoc """
  Read/write locks of names across nodes: one writer, or readers, at a time, on all nodes together.

  A lock is held when more than half of the members have a vote for it. There is no master, and `div(n - 1, 2)` of `n`
  members may be down or out of reach. A lock is kept by a lease: two nodes that cannot reach each other never both hold
  a name.

      children = [{CanalLock.Quorum, members: [:"a@host1", :"b@host2", :"c@host3"]}]

  The list is the same on all members, this node is one of them, and the nodes have to be able to connect with each
  other; they are kept connected. Then:

      iex> {:ok, lock} = CanalLock.Quorum.lock({:invoice, 17}, 5000)
      iex> CanalLock.Quorum.held(lock)
      true
      iex> CanalLock.Quorum.try_unlock(lock)
      :ok
      iex> CanalLock.Quorum.held(lock)
      false

  The process that asked for a lock is its holder. Its death gives the lock back, and it is sent
  `{:canal_lock, :at_risk, lock}` when the lock may be lost soon, and `{:canal_lock, :lost, lock}` when it is.

  What a paused holder does after its lock is lost only the resource can refuse: give it `fence/1`, and let it refuse a
  lower one than it has seen. `docs/cluster.md` says how to use and to run them, `docs/quorum.md` how they work;
  `:canal_lock_quorum` is the same in Erlang.
  """

  @typedoc """
  What is locked: a binary, an atom, an integer, or a tuple or list of names, compared with `===`. At most 1024 bytes in
  the external term format.
  """
  @type name :: :canal_lock_quorum.name()

  @typedoc """
  A lock that is or was held. Of use on its node alone.
  """
  @type lock :: :canal_lock_quorum.lock()

  @typedoc """
  `:members` have to be there: all nodes that vote, the same on each.

  `:fence_file` is where to keep how far fences have gone, so that they grow on when the node restarts. `:reconnect_ms`
  (1000) is about how often to try to connect with members that are not connected. `:rules`, a map, are the constants of
  the protocol, which have to be the same on all members.
  """
  @type option ::
          {:members, [node, ...]}
          | {:fence_file, Path.t()}
          | {:reconnect_ms, pos_integer}
          | {:rules, %{atom => pos_integer}}

  @doc """
  A child of a supervisor: the quorum locks of this node. Takes the options of `start_link/1`.

      iex> CanalLock.Quorum.child_spec(members: [node()]).start
      {CanalLock.Quorum, :start_link, [[members: [node()]]]}
  """
  @spec child_spec([option]) :: Supervisor.child_spec()
  def child_spec(options) do
    %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, type: :supervisor, shutdown: :infinity}
  end

  @doc """
  Starts the quorum locks of this node, linked to the caller.

  Options are `t:option/0`. Answers `{:error, {:already_started, pid}}` if they are started, and raises `ArgumentError`
  if an option is wrong. See `:canal_lock_quorum.start_link/1`.

      iex> CanalLock.Quorum.start_link(members: [:"a@somewhere.else"])
      ** (ArgumentError) members does not list this node, #{node()}

      iex> CanalLock.Quorum.start_link(reconnect_ms: 1000)
      ** (ArgumentError) members is missing: the list of all nodes that vote, the same on each
  """
  @spec start_link([option]) :: {:ok, pid} | {:error, term}
  def start_link(options) do
    Keyword.keyword?(options) ||
      raise ArgumentError, "not a keyword list of options such as [members: [node()]]: #{inspect(options)}"

    case :canal_lock_quorum_errors.faults(:start_link, [Map.new(options)]) do
      %{1 => fault} -> raise ArgumentError, fault
      _ -> :canal_lock_quorum.start_link(Map.new(options))
    end
  end

  @doc """
  Stops the quorum locks of this node. Its locks are lost, and given back. A supervisor starts them again.
  """
  @spec stop() :: :ok
  defdelegate stop(), to: :canal_lock_quorum

  @doc """
  Locks `name` for the calling process, alone, within `timeout_ms` milliseconds.

  `{:error, :no_quorum}` comes at once when less than a quorum of members is connected. A process that locks a name
  twice waits for itself:

      iex> {:ok, _lock} = CanalLock.Quorum.lock("stock", 5000)
      iex> CanalLock.Quorum.lock("stock", 50)
      {:error, :timeout}

  Raises `ArgumentError` if an argument is wrong, or if the quorum locks are not started on this node. Costs a round
  trip to a quorum of members; `:canal_lock_quorum.lock/2` says more.
  """
  @spec lock(name, non_neg_integer) :: {:ok, lock} | {:error, :timeout | :no_quorum}
  defdelegate lock(name, timeout_ms), to: :canal_lock_quorum

  @doc """
  Locks `name` for the calling process, with other readers. A writer that waits keeps new readers out.

      iex> {:ok, one} = CanalLock.Quorum.rlock("report", 5000)
      iex> {:ok, other} = CanalLock.Quorum.rlock("report", 5000)
      iex> {CanalLock.Quorum.held(one), CanalLock.Quorum.held(other)}
      {true, true}
  """
  @spec rlock(name, non_neg_integer) :: {:ok, lock} | {:error, :timeout | :no_quorum}
  defdelegate rlock(name, timeout_ms), to: :canal_lock_quorum

  @doc """
  Locks all of 1 to 64 `names` for the calling process, alone, or none of them: they are one lock.

      iex> {:ok, lock} = CanalLock.Quorum.lock_many([{:account, 1}, {:account, 2}], 5000)
      iex> CanalLock.Quorum.unlock(lock)
      :ok
  """
  @spec lock_many([name, ...], non_neg_integer) :: {:ok, lock} | {:error, :timeout | :no_quorum}
  defdelegate lock_many(names, timeout_ms), to: :canal_lock_quorum

  @doc """
  Calls `fun` with a lock of `name`, which is given back however `fun` ends.

      iex> CanalLock.Quorum.with_lock(:nightly_job, 5000, fn lock -> CanalLock.Quorum.fence(lock) > 0 end)
      {:ok, true}
  """
  @spec with_lock(name, non_neg_integer, (lock -> result)) :: {:ok, result} | {:error, :timeout | :no_quorum}
        when result: term
  defdelegate with_lock(name, timeout_ms, fun), to: :canal_lock_quorum

  @doc """
  Whether the lock is held, now. Reads some words of memory; no message, no call.
  """
  @spec held(lock) :: boolean
  defdelegate held(lock), to: :canal_lock_quorum

  @doc """
  A number for the resource to check: those of the writers of a name always grow.

      iex> {:ok, first} = CanalLock.Quorum.lock("file", 5000)
      iex> :ok = CanalLock.Quorum.try_unlock(first)
      iex> {:ok, second} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.fence(second) > CanalLock.Quorum.fence(first)
      true
  """
  @spec fence(lock) :: non_neg_integer
  defdelegate fence(lock), to: :canal_lock_quorum

  @doc """
  Gives a lock back, and waits until a quorum has forgotten it, unless another process of this node has it next.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.unlock(lock)
      :ok
      iex> CanalLock.Quorum.unlock(lock)
      {:error, :not_held}

  `{:error, :timeout}` if no quorum has answered for the length of a lease: it is given back all the same.
  """
  @spec unlock(lock) :: :ok | {:error, :not_held | :timeout}
  defdelegate unlock(lock), to: :canal_lock_quorum

  @doc """
  Gives a lock back, and does not wait: it is not held from now on, and the members are told by and by.

  What goes wrong then is logged. `:canal_lock_quorum.try_unlock/1` says more.
  """
  @spec try_unlock(lock) :: :ok | {:error, :not_held}
  defdelegate try_unlock(lock), to: :canal_lock_quorum

  @doc """
  How the members are, as this node sees it.

      iex> %{members: [%{connected: true}], voting: true} = CanalLock.Quorum.status()
  """
  @spec status() :: :canal_lock_quorum.status()
  defdelegate status(), to: :canal_lock_quorum

  @doc """
  Who holds what on all members, and the members that did not tell within five seconds.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> {[%{names: ["file"], mode: :write, holder: holder}], []} = CanalLock.Quorum.locks()
      iex> {holder == self(), CanalLock.Quorum.unlock(lock)}
      {true, :ok}
  """
  @spec locks() :: {[:canal_lock_quorum.lock_info()], [node]}
  defdelegate locks(), to: :canal_lock_quorum

  @doc """
  Has whoever holds `name` give it up, and tells the holder that its lock is lost.

  Others get the name when the holder's node has confirmed it, or after ten seconds of silence.
  """
  @spec force_unlock(name) :: :ok
  defdelegate force_unlock(name), to: :canal_lock_quorum
end
