defmodule CanalLock.Quorum do
  @moduledoc """
  Read/write locks of names across nodes: at any time a name has one writer, or any number of readers.

  A lock is held while more than half of the members vote for it. There is no master, and `div(n - 1, 2)` of `n` members
  may be down or unreachable. Each vote has a lease: two nodes that cannot reach each other never both write a name.

      members = [:"a@host1", :"b@host2", :"c@host3"]
      children = [{CanalLock.Quorum, members: members, state_file: "/var/lib/my_app/state.canal_lock"}]

  At a first start, all members must be started with the same list. Later `change_members/1` changes it, while locks are
  held. Other nodes are clients, which lock and do not vote. The nodes must be able to connect to each other; the
  library keeps them connected. Then:

      iex> {:ok, lock} = CanalLock.Quorum.lock({:invoice, 17}, 5000)
      iex> CanalLock.Quorum.held?(lock)
      true
      iex> CanalLock.Quorum.unlock_async(lock)
      :ok
      iex> CanalLock.Quorum.held?(lock)
      false

  The process that asked for a lock is its holder. When it dies, the lock is unlocked. The holder gets the message
  `{:canal_lock_quorum, :at_risk, lock}` when the lock may be lost soon, and `{:canal_lock_quorum, :lost, lock}` when it
  is lost.

  A holder can be suspended after it has checked its lock, and go on after the lock is lost. Only the resource can
  reject its writes then: send `fence/1` with each write, and let the resource reject a fence that is lower than the
  highest one it has seen. `docs/cluster.md` describes how to use and operate quorum locks, `docs/quorum.md` how they
  work. `:canal_lock_quorum` is the same API in Erlang.
  """

  @typedoc """
  What a lock locks: a binary, an atom, an integer, or a tuple or list of names, compared with `===`. At most 1024 bytes
  in the external term format. Tuples that begin with `:canal_lock_cluster` are reserved.
  """
  @type name :: :canal_lock_quorum.name()

  @typedoc "A lock that is or was held. Other nodes cannot use it."
  @type lock :: :canal_lock_quorum.lock()

  @typedoc "Why a lock was refused: see `t::canal_lock_quorum.refusal/0`."
  @type refusal :: :canal_lock_quorum.refusal()

  @typedoc """
  `:members` is required: 1 to 16 nodes, the members at the first start of the cluster; later, whom to ask for them.
  `:voter` (default `true`) is `false` on a node that is always a client, which takes no `:state_file` and `:clients`.
  `:clients` (default `:all`) says which clients a member allows: `:none`, `:all`, or a list of nodes. `:state_file` is
  the file in which this node stores what it must know after a restart: the members, and its fences. Each node needs a
  file of its own; the default is `NODE.canal_lock` in the user's data folder ("The state file" in `docs/cluster.md`).
  `:reconnect_ms` (default 1000) is the average interval, in milliseconds, between attempts to connect to members that
  are not connected; up to a quarter of `:lease_ms` while these fail at once. `:lease_ms` (default 10000, at least
  1000) is for how many milliseconds a voter keeps votes without a message of their node, and how long a restarted
  voter grants nothing. It must be the same on each member, and is fixed at the first start. `:run` (1 to 255, default
  16) is how many processes of this node may hold a name one after the other while other nodes wait. `:max_waiting`
  (default 10000) is the largest number of requests of this node that wait for a lock at a time. `:totals_interval_ms`
  (default 5000) is how often the totals of `status/0` are emitted as a telemetry event
  (`m::canal_lock_quorum_telemetry`).
  """
  @type option ::
          {:members, [node, ...]}
          | {:voter, boolean}
          | {:clients, :none | :all | [node]}
          | {:state_file, Path.t()}
          | {:reconnect_ms, pos_integer}
          | {:lease_ms, pos_integer}
          | {:run, 1..255}
          | {:max_waiting, pos_integer}
          | {:totals_interval_ms, pos_integer}

  @doc """
  The child specification of the quorum locks of this node, for a supervisor. Takes the options of `start_link/1`.

      iex> CanalLock.Quorum.child_spec(members: [node()]).start
      {CanalLock.Quorum, :start_link, [[members: [node()]]]}
  """
  @spec child_spec([option]) :: Supervisor.child_spec()
  def child_spec(options) do
    %{id: __MODULE__, start: {__MODULE__, :start_link, [options]}, type: :supervisor, shutdown: :infinity}
  end

  @doc """
  Starts the quorum locks of this node, linked to the caller. Options are `t:option/0`. Answers `{:error,
  {:already_started, pid}}` if they run, `{:error, {:state_file_in_use, path}}` if another node on this machine has
  used the file and still runs, `{:error, {:state_file_not_writable, path, text}}` if its folder does not exist or
  cannot be written, `{:error, {:state_file_not_usable, path, text}}` if it is that of another node, or no state file,
  and `{:error, {:lease_ms, given, stored}}` if the members have another lease. Raises `ArgumentError` if an option is
  wrong. See `:canal_lock_quorum.start_link/1`.

      iex> CanalLock.Quorum.start_link(members: [:a@b, :a@b])
      ** (ArgumentError) the option :members must contain each node once, got: [:a@b, :a@b]

      iex> CanalLock.Quorum.start_link(reconnect_ms: 1000)
      ** (ArgumentError) the option :members is missing; it must be a list of 1 to 16 nodes
  """
  @spec start_link([option]) :: {:ok, pid} | {:error, term}
  def start_link(options), do: options |> CanalLock.Options.quorum!() |> :canal_lock_quorum.start_link()

  @doc """
  Stops the quorum locks of this node. They are unlocked, and their holders get `:lost`. A supervisor restarts it.
  """
  @spec stop() :: :ok
  defdelegate stop(), to: :canal_lock_quorum

  @doc """
  Locks `name` for the calling process, exclusively, within `timeout_ms` milliseconds, or without a limit if it is
  `:infinity`. Answers `{:error, :no_quorum}` at once if less than a quorum of the members is connected, and `{:error,
  :too_many_waiting}` at once if `:max_waiting` requests of this node wait already. With a timeout of 0 it waits for no
  other request. A process that locks a name twice waits for itself:

      iex> {:ok, _lock} = CanalLock.Quorum.lock("stock", 5000)
      iex> CanalLock.Quorum.lock("stock", 50)
      {:error, :timeout}

  Raises `ArgumentError` if an argument is wrong, or if the quorum locks are not started on this node. Cost: a round
  trip to a quorum of voters. `:canal_lock_quorum.lock/2` has the details.
  """
  @spec lock(name, timeout) :: {:ok, lock} | {:error, refusal}
  defdelegate lock(name, timeout_ms), to: :canal_lock_quorum

  @doc """
  Locks `name` for the calling process, together with other readers. A waiting writer keeps new readers out: those of
  another node from when that node knows of the writer, at the latest after a fifth of `:lease_ms`.

      iex> {:ok, one} = CanalLock.Quorum.rlock("report", 5000)
      iex> {:ok, other} = CanalLock.Quorum.rlock("report", 5000)
      iex> {CanalLock.Quorum.held?(one), CanalLock.Quorum.held?(other)}
      {true, true}
  """
  @spec rlock(name, timeout) :: {:ok, lock} | {:error, refusal}
  defdelegate rlock(name, timeout_ms), to: :canal_lock_quorum

  @doc """
  Locks all of 1 to 64 `names` for the calling process, exclusively, or none of them. They are one lock.

      iex> {:ok, lock} = CanalLock.Quorum.lock_many([{:account, 1}, {:account, 2}], 5000)
      iex> CanalLock.Quorum.unlock(lock)
      :ok
  """
  @spec lock_many([name, ...], timeout) :: {:ok, lock} | {:error, refusal}
  defdelegate lock_many(names, timeout_ms), to: :canal_lock_quorum

  @doc """
  Locks all of 1 to 64 `names` together with other readers, or none of them. They are one lock.

      iex> {:ok, one} = CanalLock.Quorum.rlock_many([{:account, 1}, {:account, 2}], 5000)
      iex> {:ok, other} = CanalLock.Quorum.rlock_many([{:account, 2}, {:account, 3}], 5000)
      iex> {CanalLock.Quorum.held?(one), CanalLock.Quorum.held?(other)}
      {true, true}
  """
  @spec rlock_many([name, ...], timeout) :: {:ok, lock} | {:error, refusal}
  defdelegate rlock_many(names, timeout_ms), to: :canal_lock_quorum

  @doc """
  Calls `fun` with a lock of `name`. The lock is unlocked when `fun` returns, raises, throws or exits.

      iex> CanalLock.Quorum.with_lock(:nightly_job, 5000, fn lock -> CanalLock.Quorum.fence(lock) > 0 end)
      {:ok, true}
  """
  @spec with_lock(name, timeout, (lock -> result)) :: {:ok, result} | {:error, refusal} when result: term
  defdelegate with_lock(name, timeout_ms, fun), to: :canal_lock_quorum

  @doc """
  Calls `fun` with a reader's lock of `name`, as `with_lock/3`.

      iex> CanalLock.Quorum.with_rlock("report", 5000, fn _ -> CanalLock.Quorum.rlock("report", 5000) |> elem(0) end)
      {:ok, :ok}
  """
  @spec with_rlock(name, timeout, (lock -> result)) :: {:ok, result} | {:error, refusal} when result: term
  defdelegate with_rlock(name, timeout_ms, fun), to: :canal_lock_quorum

  @doc """
  Whether the lock is held. Reads a few words of memory; sends no message.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.held?(lock)
      true
  """
  @spec held?(lock) :: boolean
  defdelegate held?(lock), to: :canal_lock_quorum, as: :is_held

  @doc """
  The fence of a lock: a number for the resource to check. The fences of the writers of a name always grow.

      iex> {:ok, first} = CanalLock.Quorum.lock("file", 5000)
      iex> :ok = CanalLock.Quorum.unlock_async(first)
      iex> {:ok, second} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.fence(second) > CanalLock.Quorum.fence(first)
      true
  """
  @spec fence(lock) :: non_neg_integer
  defdelegate fence(lock), to: :canal_lock_quorum

  @doc """
  Unlocks a lock and waits until a quorum has confirmed it, unless it is passed on to another process of this node.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.unlock(lock)
      :ok
      iex> CanalLock.Quorum.unlock(lock)
      {:error, :not_held}

  Answers `{:error, :timeout}` if no quorum has confirmed within `:lease_ms` (10 s). The lock is unlocked anyway.
  """
  @spec unlock(lock) :: :ok | {:error, :not_held | :timeout}
  defdelegate unlock(lock), to: :canal_lock_quorum

  @doc """
  Unlocks a lock without a wait. It is not held when the call returns. The members are notified in the background.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.unlock_async(lock)
      :ok
      iex> CanalLock.Quorum.held?(lock)
      false

  A failure to notify the members is logged. `:canal_lock_quorum.unlock_async/1` has the details.
  """
  @spec unlock_async(lock) :: :ok | {:error, :not_held}
  defdelegate unlock_async(lock), to: :canal_lock_quorum

  @doc """
  Replaces the list of members: `members` are 1 to 16 nodes that run. Call it on any member. Held locks stay held. New
  locks wait for some round trips and writes to the disk, or for a lease if a node dies or is cut off during the change.

      iex> CanalLock.Quorum.change_members([node()])
      {:ok, 0}

  Answers `{:ok, number}` when a quorum of the new members votes and no lock needs the old ones: nodes that left the
  list may be stopped then.
  Answers `{:error, {:not_ready, [{node, why}]}}` if nothing was changed, `{:error, {:changing, record}}` if another
  change is not over, and `{:error, {:unknown | :starting, record}}` if too few nodes answered in time.
  `:canal_lock_quorum.change_members/1` has the details.
  """
  @spec change_members([node, ...]) :: :canal_lock_quorum.change_answer()
  defdelegate change_members(members), to: :canal_lock_quorum

  @doc """
  Makes a new cluster of `members` after more than half of the old ones were lost permanently. This node must be in the
  list, and after an earlier reset a member of that one. All locks are lost. Old members outside the list must never run
  again with their state files.
  `:canal_lock_quorum.reset_members/1` has the details.
  """
  @spec reset_members([node, ...]) :: :canal_lock_quorum.change_answer()
  defdelegate reset_members(members), to: :canal_lock_quorum

  @doc """
  Whether this node does its part: a member votes, a client reaches a quorum of members that vote. For readiness probes:
  of several members, restart the next one when this one is ready. `false` also while the quorum locks are not started,
  or do not answer.

      iex> CanalLock.Quorum.ready?()
      true
  """
  @spec ready?() :: boolean
  defdelegate ready?(), to: :canal_lock_quorum, as: :ready

  @doc """
  The members and the locks of this node, as this node sees them.

      iex> {:ok, _lock} = CanalLock.Quorum.lock("file", 5000)
      iex> %{members: [%{connected: true}], voting: true, quorum: true, held: 1} = CanalLock.Quorum.status()
  """
  @spec status() :: :canal_lock_quorum.status()
  defdelegate status(), to: :canal_lock_quorum

  @doc """
  The locks of all members and clients, and those nodes that did not answer within five seconds.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> {[%{names: ["file"], mode: :write, holder: holder}], []} = CanalLock.Quorum.locks()
      iex> {holder == self(), CanalLock.Quorum.unlock(lock)}
      {true, :ok}
  """
  @spec locks() :: {[:canal_lock_quorum.lock_info()], [node]}
  defdelegate locks(), to: :canal_lock_quorum

  @doc """
  The locks of `name`, and the nodes that did not answer within five seconds. Reads the locks of this name only.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> {[%{holder: holder, mode: :write, held: true}], []} = CanalLock.Quorum.holder("file")
      iex> {holder == self(), CanalLock.Quorum.unlock(lock), CanalLock.Quorum.holder("file")}
      {true, :ok, {[], []}}
  """
  @spec holder(name) :: {[:canal_lock_quorum.lock_info()], [node]}
  defdelegate holder(name), to: :canal_lock_quorum

  @doc """
  The requests that wait for `name`, the longest wait first, and the nodes that did not answer within five seconds.

      iex> CanalLock.Quorum.waiting("file")
      {[], []}
  """
  @spec waiting(name) :: {[:canal_lock_quorum.waiting_info()], [node]}
  defdelegate waiting(name), to: :canal_lock_quorum

  @doc """
  Revokes all locks of `name`, and notifies their holders that the locks are lost. Other processes can lock the name
  when the holder's node has confirmed the revocation, or after `:lease_ms` of silence.

  Answers `:ok` when the request is on its way to the members; `holder/1` shows whether a lock is left.

      iex> {:ok, lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.force_unlock("file")
      :ok
      iex> receive do: ({:canal_lock_quorum, :lost, ^lock} -> CanalLock.Quorum.held?(lock))
      false
  """
  @spec force_unlock(name) :: :ok
  defdelegate force_unlock(name), to: :canal_lock_quorum

  @doc """
  Shows the quorum locks as this node sees them, as text until Enter is pressed, in a shell, also in one that is
  attached to a running node. It shows the numbers of `status/0`, rates per second, the names that most requests of this
  node wait for, the processes of this node that hold most locks, the members, and the clients.

  Options, a keyword list: `:interval_ms` (default 1000) is the pause between two refreshes in milliseconds. `:rows`
  (default 10) is the largest number of rows of each list. Names are formatted by `inspect/2`.

  Raises `ArgumentError` if an option is wrong or the quorum locks are not started on this node.
  `:canal_lock_quorum.top/1` explains each number, and the cost of a refresh.

      iex> {:ok, screen} = StringIO.open("")
      iex> Process.group_leader(self(), screen)
      iex> {:ok, _lock} = CanalLock.Quorum.lock("file", 5000)
      iex> CanalLock.Quorum.top(interval_ms: 1)
      :ok
      iex> {_, shown} = StringIO.contents(screen)
      iex> shown =~ "quorum: yes; this node votes"
      true
  """
  @spec top([{:interval_ms, pos_integer} | {:rows, pos_integer}]) :: :ok
  def top(options \\ []) do
    options |> CanalLock.Options.view!() |> :canal_lock_quorum.top()
  end
end
