# Runs the programs of docs/recipes.md and of the README. canal_lock_docs_tests runs their shell sessions.

# Substitutes for packages that the tests cannot fetch, with the parts that the page uses.
defmodule :telemetry do
  def execute(event, measurements, metadata) do
    send(self(), {:event, event, measurements, metadata})
    :ok
  end
end

defmodule Telemetry.Metrics do
  for kind <- [:counter, :summary, :last_value] do
    def unquote(kind)(name, options \\ []), do: {unquote(kind), String.split(name, "."), options}
  end
end

defmodule CanalLock.RecipesPage do
  @page "docs/recipes.md"

  def text, do: File.read!(@page)

  # The paragraph before a block says so if the block is not run.
  def blocks do
    for [_, paragraph, language, code] <- Regex.scan(~r/((?:[^\n]+\n)+)\n```(\w+)\n(.*?)(?=^```)/ms, text()) do
      {if(paragraph =~ "*not run here*", do: :not_run, else: :run), language, code}
    end
  end

  def tests?(code), do: code =~ "use ExUnit.Case"

  def load("elixir", "defmodule " <> _ = code), do: Code.eval_string(code, [], file: @page)

  def load("erlang", "-module(" <> _ = code) do
    file = "_build/recipes/module.erl"
    File.mkdir_p!(Path.dirname(file))
    File.write!(file, code)
    {:ok, module, beam} = :compile.file(String.to_charlist(file), [:binary, :no_error_module_mismatch, :report])
    {:module, ^module} = :code.load_binary(module, ~c"#{module}.erl", beam)
  end

  def load("erlang", "1> " <> _), do: :a_session
end

for {:run, language, code} <- CanalLock.RecipesPage.blocks(), not CanalLock.RecipesPage.tests?(code) do
  CanalLock.RecipesPage.load(language, code)
end

defmodule CanalLock.RecipesTest do
  use ExUnit.Case, async: false

  import CanalLock.RecipesPage

  # The programs of the README are loaded by their test.
  @compile {:no_warn_undefined, [Weather, :weather]}

  # For calls that are not meant to end without their answer. Below ExUnit's limit for a test.
  @timeout_ms 50_000

  setup_all do
    {:ok, _} = Application.ensure_all_started(:inets)
    :ok
  end

  setup do
    start_supervised!(CanalLock)
    :ok
  end

  test "all blocks are found; those that are not run are Elixir; Elixir is formatted" do
    assert length(blocks()) == length(Regex.scan(~r/^```\w/m, text()))
    assert ["elixir", "elixir", "elixir"] == for({:not_run, language, _} <- blocks(), do: language)

    for {_, "elixir", code} <- blocks() do
      assert IO.iodata_to_binary([Code.format_string!(code, line_length: 98), "\n"]) == code
    end
  end

  # Both languages.
  @http [&MyApp.HTTP.get/2, &:my_http.get/2]

  test "HTTP: ten requests to a host; another one is refused within its time; other hosts are not affected" do
    for get <- @http do
      {server, port} = serve()
      callers = for _ <- 1..10, do: Task.async(fn -> get.("http://localhost:#{port}/", @timeout_ms) end)
      requests = for _ <- 1..10, do: request(server)
      assert {:error, :busy} = get.("http://localhost:#{port}/", 20)
      caller = Task.async(fn -> get.("http://127.0.0.1:#{port}/", @timeout_ms) end)
      for request <- [request(server) | requests], do: send(request, "200 OK")
      for caller <- [caller | callers], do: assert({:ok, {{_, 200, _}, _, _}} = result(caller))
      assert [] == CanalLock.keys()
      refute_received {^server, _}
    end
  end

  # Its programs, with the address of a server of the test.
  test "the README: ten requests at a time, another one is refused after 200 ms, in both languages" do
    {server, port} = serve()

    for [_, language, code] <- Regex.scan(~r/^```(\w+)\n((?:-module|defmodule).*?)^```/ms, File.read!("README.md")) do
      load(language, String.replace(code, "api.example.com", "localhost:#{port}"))
    end

    for today <- [&Weather.today/1, &:weather.today/1], city = ~c"berlin" do
      callers = for _ <- 1..10, do: Task.async(fn -> today.(city) end)
      requests = for _ <- 1..10, do: request(server)
      assert {:error, :too_busy} = today.(city)
      for request <- requests, do: send(request, "200 OK")
      for caller <- callers, do: assert({:ok, {{_, 200, _}, _, _}} = result(caller))
    end
  end

  test "HTTP: a request of another process keeps its permit when the caller is killed" do
    {server, port} = serve()
    url = "http://localhost:#{port}/"
    killed = for _ <- 1..9, do: spawn(fn -> MyApp.HTTP.get_apart(url, @timeout_ms) end)
    requests = for _ <- 1..9, do: request(server)
    for pid <- killed, do: Process.exit(pid, :kill)
    await(fn -> not Enum.any?(killed, &Process.alive?/1) end)
    assert CanalLock.count({:http, "localhost", port}) == 9
    caller = Task.async(fn -> MyApp.HTTP.get_apart(url, @timeout_ms) end)
    for request <- [request(server) | requests], do: send(request, "200 OK")
    assert {:ok, {{_, 200, _}, _, _}} = result(caller)
    await(fn -> CanalLock.keys() == [] end)
    {:acquired, 10} = CanalLock.acquire({:http, "localhost", port}, 10, permits: 10)
    assert {:error, :busy} = MyApp.HTTP.get_apart(url, 0)
  end

  test "HTTP: a redirect to another host is not followed" do
    for get <- @http do
      {server, port} = serve()
      caller = Task.async(fn -> get.("http://localhost:#{port}/", @timeout_ms) end)
      send(request(server), "302 Found\r\nLocation: http://127.0.0.1:#{port}/")
      assert {:ok, {{_, 302, _}, _, _}} = result(caller)
    end
  end

  test "HTTP: the wait for a permit is part of the time" do
    {:module, :httpc} = Code.ensure_loaded(:httpc)
    1 = :erlang.trace_pattern({:httpc, :request, 4}, true, [])

    for get <- @http do
      {server, port} = serve()
      key = {:http, "localhost", port}
      {:acquired, 10} = CanalLock.acquire(key, 10, permits: 10)
      %{pid: pid} = caller = Task.async(fn -> get.("http://localhost:#{port}/", @timeout_ms) end)
      await(fn -> CanalLock.waiting(key) == 1 end)
      1 = :erlang.trace(pid, true, [:call])
      Process.sleep(20)
      :ok = CanalLock.release(key, permits: 10)
      assert_receive {:trace, ^pid, :call, {:httpc, :request, [:get, _, options, _]}}, @timeout_ms
      assert options[:timeout] <= @timeout_ms - 20
      send(request(server), "200 OK")
      assert {:ok, {{_, 200, _}, _, _}} = result(caller)
    end
  end

  test "a global and a tenant limit; a call that waits for its tenant holds no global permit" do
    test = self()

    call = fn tenant, timeout_ms ->
      MyApp.Quota.call(tenant, timeout_ms, fn ->
        send(test, :called)
        receive(do: (:return -> tenant))
      end)
    end

    called = fn -> assert_receive :called, @timeout_ms end
    busy = for _ <- 1..5, do: Task.async(fn -> call.(:busy, 0) end)
    for _ <- busy, do: called.()
    assert :full == call.(:busy, 0)
    waiter = Task.async(fn -> call.(:busy, @timeout_ms) end)
    await(fn -> CanalLock.waiting({:quota, 1, :busy}) == 1 end)
    assert CanalLock.count({:quota, 2, :all}) == 5
    others = for tenant <- 1..19, _ <- 1..5, do: Task.async(fn -> call.(tenant, 0) end)
    for _ <- others, do: called.()
    assert :full == call.(:another, 0)
    for %{pid: pid} <- [waiter | busy ++ others], do: send(pid, :return)
    assert {:ok, :busy} = result(waiter)
    for task <- busy ++ others, do: assert({:ok, _} = result(task))
    assert [] == CanalLock.keys()
  end

  test "once per night: one of all callers runs the job, and none while it holds the slot" do
    start_supervised!({CanalLock.Quorum, members: [node()]})
    test = self()
    run = fn slot -> Task.async(fn -> MyApp.Nightly.run(slot, 3_600_000, fn -> send(test, {:ran, slot}) end) end) end
    for _ <- 1..3, do: run.(:monday)
    for _ <- 1..2, do: assert_receive({_task, :another_node_has_it}, @timeout_ms)
    assert_receive {:ran, :monday}, @timeout_ms
    run.(:tuesday)
    assert_receive {:ran, :tuesday}, @timeout_ms
    refute_received {:ran, _}
  end

  # In a project's test run, the application has opened the table.
  test "the tests with async: true pass" do
    [code] = for {:run, "elixir", code} <- blocks(), tests?(code), do: code
    run = "ExUnit.start(); {:ok, _} = Application.ensure_all_started(:canal_lock); Code.eval_string(hd(System.argv()))"
    ebin = Path.dirname(:code.which(CanalLock))
    {output, status} = System.cmd("elixir", ["-pa", ebin, "-e", run, code], stderr_to_stdout: true)
    assert {output, status} == {output, 0}
    assert output =~ "2 tests, 0 failures"
  end

  test "one event per call" do
    call = fn timeout_ms, fun -> MyApp.Permits.with_permit(:db, {:db, 17}, 1, [timeout_ms: timeout_ms], fun) end
    assert {:ok, :full} == call.(0, fn -> call.(20, fn -> :never_called end) end)
    assert_receive {:event, [:my_app, :permit], %{wait: no_wait}, %{name: :db, result: :acquired}}
    assert_receive {:event, [:my_app, :permit], %{wait: wait}, %{name: :db, result: :full}}
    refute_receive {:event, _, _, _}, 0
    ms = &System.convert_time_unit(&1, :native, :millisecond)
    assert ms.(wait) >= 20 and no_wait < wait
  end

  test "the metrics are the measurements that exist, and none of them is a sum" do
    metrics = MyApp.Permits.metrics()
    totals = for {:last_value, ["canal_lock", "totals", number], _} <- metrics, do: String.to_existing_atom(number)
    assert Enum.sort(totals) == Enum.sort(Map.keys(CanalLock.info()) -- [:max_per])
    others = for {kind, ["my_app", "permit", number], options} <- metrics, do: {kind, number, options[:tags]}
    assert [{:counter, "count", [:name, :result]}, {:summary, "wait", [:name, :result]}] == others
    assert length(metrics) == length(totals ++ others)
  end

  test "a task per page" do
    {server, port} = serve()
    urls = for n <- 1..12, do: "http://localhost:#{port}/#{n}"
    caller = Task.async(fn -> MyApp.Pages.get_all(urls, @timeout_ms) end)
    requests = for _ <- 1..10, do: request(server)
    await(fn -> CanalLock.waiting({:http, "localhost", port}) == 2 end)
    refute_received {^server, _}
    for request <- requests, do: send(request, "200 OK")
    for _ <- 1..2, do: send(request(server), "200 OK")
    assert List.duplicate(200, 12) == for({:ok, {{_, status, _}, _, _}} <- result(caller), do: status)
  end

  # An HTTP server that sends each connection with a request to the test, and answers as the test says.
  defp serve do
    test = self()
    {:ok, listener} = :gen_tcp.listen(0, [:binary, active: false, packet: :http_bin, backlog: 100])
    {:ok, port} = :inet.port(listener)
    server = make_ref()
    spawn_link(fn -> accept(listener, server, test) end)
    {server, port}
  end

  defp accept(listener, server, test) do
    {:ok, socket} = :gen_tcp.accept(listener)
    pid = spawn_link(fn -> answer(socket, server, test) end)
    :ok = :gen_tcp.controlling_process(socket, pid)
    send(pid, :go_on)
    accept(listener, server, test)
  end

  defp answer(socket, server, test) do
    receive(do: (:go_on -> :ok))
    {:ok, _} = :gen_tcp.recv(socket, 0)
    send(test, {server, self()})

    receive do
      head -> :gen_tcp.send(socket, "HTTP/1.1 #{head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    end
  end

  defp request(server) do
    assert_receive {^server, connection}, @timeout_ms
    connection
  end

  defp result(task), do: Task.await(task, @timeout_ms)

  defp await(reached?) do
    unless reached?.() do
      Process.sleep(1)
      await(reached?)
    end
  end
end
