# Limits 40 workers to eight Redis connections while a task kills workers at random.
# Redis itself is the judge: it refuses each excess connection and counts the refusals.
#
#     make demo WHAT=elixir
#     elixir -pa _build/dev/lib/canal_lock/ebin examples/redis_connections.exs --seconds 3 --holder worker
#
# The second line (after `mix compile`) shows what goes wrong when the wrong process holds the permit, and exits with
# status 1. Requires Debian's redis-server and erlang-redis-client (eredis) in addition to canal_lock.

abort = fn reason ->
  IO.puts(:stderr, "redis_connections: #{reason}")
  System.halt(1)
end

types = [limit: :integer, workers: :integer, seconds: :float, holder: :string]
{given, others, wrong} = OptionParser.parse(System.argv(), strict: types)
for {name, value} <- wrong, do: abort.("invalid option #{name} #{value}; options: #{inspect(types)}")
for word <- others, do: abort.("unexpected argument #{word}; options: #{inspect(types)}")
options = Map.merge(%{limit: 8, workers: 40, seconds: 10.0, holder: "connection"}, Map.new(given))
for {name, value} <- options, is_number(value), value <= 0, do: abort.("--#{name} must be positive, got: #{value}")
options.workers > options.limit || abort.("--workers must exceed --limit, otherwise no worker is refused")
options.holder in ["connection", "worker"] || abort.("--holder must be connection or worker, got: #{options.holder}")

Code.ensure_loaded?(CanalLock) || abort.("CanalLock is not on the code path; see the head of this file")
Code.ensure_loaded?(:eredis) || abort.("eredis is not on the code path; install Debian's erlang-redis-client")
System.find_executable("redis-server") || abort.("redis-server is not on the path; install Debian's redis-server")

# ## The server

defmodule Redis do
  # Redis replaces the shell (exec). A background process reads the pipe. When the VM exits or is killed, the pipe
  # closes, and that process stops Redis.
  @until_we_end ~S[exec 3<&0; (read _ <&3; kill $$) >/dev/null & exec "$0" "$@" 3<&-]

  # Listens on a free loopback port, and retries if another program takes the port first. Writes nothing to disk.
  def start(max_clients, attempts \\ 5) do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :ok = :gen_tcp.close(socket)
    command = ~w(redis-server --bind 127.0.0.1 --port #{port} --maxclients #{max_clients} --appendonly no --save)
    arguments = ["-c", @until_we_end | command ++ [""]]
    shell = Port.open({:spawn_executable, "/bin/sh"}, [:binary, :exit_status, line: 1000, args: arguments])

    case await(shell, "") do
      :ready -> port
      {:ended, _} when attempts > 1 -> start(max_clients, attempts - 1)
      {:ended, last_line} -> raise "Redis did not start: #{last_line}"
    end
  end

  defp await(shell, last_line) do
    receive do
      {^shell, {:data, {_, line}}} -> if line =~ "Ready to accept", do: :ready, else: await(shell, line)
      {^shell, {:exit_status, _}} -> {:ended, last_line}
    end
  end

  def connect(port) do
    {:ok, connection} = :eredis.start_link(host: ~c"127.0.0.1", port: port, reconnect_sleep: :no_reconnect)
    connection
  end

  # Without a timeout, because a timeout in the caller does not stop the command in Redis.
  def ask(connection, words), do: :eredis.q(connection, words, :infinity)

  # Closing only this end is not enough: Redis notices later. (Without kills, Redis then refused 5 to 118 of 750
  # connections.) Redis removes a connection from its list before it closes its own end. So this sends QUIT and waits
  # until Redis has closed, which is when the eredis process exits.
  def disconnect(connection) do
    monitor = Process.monitor(connection)
    :eredis.q_noreply(connection, ["QUIT"])

    receive do
      {:DOWN, ^monitor, :process, _, _} -> :ok
    end
  end

  # The number of connections in Redis, without the caller's.
  def connections(connection) do
    {:ok, list} = ask(connection, ["CLIENT", "LIST"])
    length(String.split(list, "\n", trim: true)) - 1
  end

  # Refused connections since the start of Redis. CLIENT LIST never exceeds `maxclients`, because Redis enforces it.
  # This counter shows whether Redis had to, and it also covers the time between two samples.
  def refused(connection) do
    {:ok, stats} = ask(connection, ["INFO", "stats"])
    [_, refused] = Regex.run(~r/rejected_connections:(\d+)/, stats)
    String.to_integer(refused)
  end
end

defmodule Figures do
  def start(names) do
    :ets.new(__MODULE__, [:named_table, :public])
    :ets.insert(__MODULE__, for(name <- names, do: {name, 0}))
  end

  def add(name), do: :ets.update_counter(__MODULE__, name, 1)
  def raise_to(name, value), do: :ets.insert(__MODULE__, {name, max(value, get(name))})
  def get(name), do: :ets.lookup_element(__MODULE__, name, 2)
end

# ## A call, and which process holds its permit
#
# The permit is acquired before the connection opens and released after Redis has closed it. The worker could do this
# itself (`--holder worker`). When such a worker is killed, the VM releases the permit and closes the socket, but Redis
# notices later. By then another worker may have acquired the permit and connected: one connection too many. In ten
# seconds, 500 to 1,000 workers were killed while they held a permit, and Redis refused 19 to 254 connections.
#
# canal_lock counts permits exactly. But a permit stands for a resource, here a connection slot in Redis. So *its holder
# must be the process whose exit is the end of the use*. A worker may die at any time, so each connection has its own
# process, which exits when Redis has closed the connection. It is not linked to the worker and continues after the
# worker's death, because Redis also continues: the slot is in use until the command is done. (If that takes too long,
# let the server end it with CLIENT KILL or pg_terminate_backend; the process then sees the connection close.) Killing
# the connection's process itself has the same effect as killing a worker that holds the permit: no process in this VM
# waits for the server. See docs/operating.md, "Which process should hold the permit".

defmodule Call do
  def by_caller(port, limit) do
    CanalLock.with_permit(:redis, limit, 1, fn ->
      connection = Redis.connect(port)

      try do
        {:ok, :undefined} = Redis.ask(connection, ["BLPOP", "a list that stays empty", "0.02"])
        Figures.add(:calls)
      after
        Redis.disconnect(connection)
      end
    end)
  end

  def by_connection_process(port, limit) do
    caller = self()

    Connections
    |> Task.Supervisor.async_nolink(fn ->
      answer = by_caller(port, limit)
      if answer != :full and not Process.alive?(caller), do: Figures.add(:outlived)
      answer
    end)
    |> Task.await(:infinity)
  end
end

# ## The load
#
# Log reports of killed workers and refused connections are disabled; the counters show them.

:logger.set_primary_config(:level, :none)
Figures.start([:calls, :killed, :outlived, :peak])
port = Redis.start(options.limit + 1)
observer = Redis.connect(port)

{:ok, tree} =
  Supervisor.start_link(
    [
      {CanalLock, max_per: options.limit},
      {Task.Supervisor, name: Connections},
      {Task.Supervisor, name: Workers, max_restarts: 1_000_000}
    ],
    strategy: :one_for_one
  )

call = if options.holder == "worker", do: &Call.by_caller/2, else: &Call.by_connection_process/2
repeat = fn step -> step |> Stream.repeatedly() |> Stream.run() end

work = fn -> if call.(port, options.limit) == :full, do: Process.sleep(:rand.uniform(10)) end
sample = fn -> Figures.raise_to(:peak, Redis.connections(observer)) end

kill = fn ->
  Process.sleep(1)
  Workers |> Task.Supervisor.children() |> Enum.random() |> Process.exit(:kill)
  Figures.add(:killed)
end

IO.puts("#{options.workers} workers share #{options.limit} connections to Redis on port #{port}")
for _ <- 1..options.workers, do: Task.Supervisor.start_child(Workers, fn -> repeat.(work) end, restart: :permanent)
sampling = Task.async(fn -> repeat.(sample) end)
killing = Task.async(fn -> repeat.(kill) end)

# On a terminal one line that is updated, elsewhere one line per second.
{pause, before, behind} = if match?({:ok, _}, :io.columns()), do: {100, "\r", ""}, else: {1000, "", "\n"}

for left <- round(options.seconds * 1000)..1//-pause do
  Process.sleep(min(left, pause))
  [calls, killed, peak] = Enum.map([:calls, :killed, :peak], &Figures.get/1)
  IO.write("#{before}#{calls} calls, #{killed} workers killed, at most #{peak} connections#{behind}")
end

# ## The result
#
# `outlived` and the count of deaths are read first, because stopping the workers would increase them. When the calls in
# progress have returned, no permit may be left in this VM and no connection in Redis.

Task.shutdown(killing, :brutal_kill)
{outlived, released_by_death} = {Figures.get(:outlived), CanalLock.info().released_by_death}
:ok = Supervisor.terminate_child(tree, Workers)

for connection <- Task.Supervisor.children(Connections), monitor = Process.monitor(connection) do
  receive do
    {:DOWN, ^monitor, :process, _, _} -> :ok
  end
end

Task.shutdown(sampling, :brutal_kill)
info = CanalLock.info()

results = [
  {"permits granted", info.granted, :any},
  {"calls made", Figures.get(:calls), :any},
  {"refusals (full)", info.refused, :any},
  {"workers killed", Figures.get(:killed), :any},
  {"calls that outlived their worker", outlived, :any},
  {"permits released by deaths", released_by_death, :any},
  {"maximum of connections in CLIENT LIST", Figures.get(:peak), [options.limit]},
  {"connections refused by Redis", Redis.refused(observer), [0]},
  {"connections left", Redis.connections(observer), [0]},
  {"permits left", info.permits, [0]},
  {"holders left", info.holders, [0]},
  {"releases by non-holders", info.not_held, [0]},
  {"keys that audit/0 reports", length(CanalLock.audit()), [0]}
]

broken = for {what, figure, good} <- results, good != :any, figure not in good, do: what
IO.puts("#{if behind == "", do: "\n"}#{Enum.map(results, fn {what, figure, _} -> "  #{figure} #{what}\n" end)}")
IO.puts(if broken == [], do: "The limit was reached and never exceeded.", else: "Failed: #{Enum.join(broken, ", ")}.")
System.halt(if broken == [], do: 0, else: 1)
