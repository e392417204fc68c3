defmodule CanalLockTest do
  # What only the Elixir module does: options, child specifications, and the display of errors. The Erlang suites test
  # the rest.
  use ExUnit.Case, async: false

  test "exports every function of :canal_lock" do
    ours = [__info__: 1, module_info: 0, module_info: 1, child_spec: 1, start_link: 1]
    erlangs = :canal_lock.module_info(:exports) -- [module_info: 0, module_info: 1, start_link: 2]
    assert [] = erlangs -- CanalLock.module_info(:exports)
    assert [] = CanalLock.module_info(:exports) -- (erlangs ++ ours)
  end

  test "each function passes its arguments in the same order" do
    start_supervised!(CanalLock)
    assert %{max_per: :undefined} = CanalLock.info()
    start_supervised!({CanalLock, max_per: 3}, id: :another)
    assert {:acquired, 1} = CanalLock.acquire(:db, 1, 2)
    assert {:acquired, 2} = CanalLock.acquire_on(node(), :db, 2, 1)
    assert :full = CanalLock.acquire(:db, 2, 1)
    assert :full = CanalLock.with_permit(:db, 0, 9, fn -> flunk("without a permit") end)
    assert {:ok, :done} = CanalLock.with_permit(:db, 3, 1, fn -> :done end)
    assert [2] = CanalLock.buckets(:db, 3)
    assert [1, 1] = CanalLock.buckets(:db, 1)
    assert 2 = CanalLock.count(:db)
    assert [{self(), 2}] == CanalLock.holders(:db)
    assert [{:db, 2}] == CanalLock.held()
    assert [{:db, 2}] == CanalLock.held(self())
    assert [] == CanalLock.held(Process.whereis(:canal_lock))
    assert [{:db, 2}] == CanalLock.keys()
    assert [] == CanalLock.audit()
    assert :ok = CanalLock.release(:db, 3, 1)
    assert :ok = CanalLock.release_on(node(), :db)
    assert {:error, :not_held} = CanalLock.release(:db)
    assert {:ok, 1} = CanalLock.with_permit_on(node(), :db, 3, 1, fn -> CanalLock.count(:db) end)
    assert {:acquired, 1} = CanalLock.acquire_on(node(), :db, 3, 1)
    assert :ok = CanalLock.release_on_async(node(), :db)
    assert %{granted: 5, released: 5, refused: 2, not_held: 1, max_per: 3} = CanalLock.info()
    # This node is not distributed, so it cannot connect to any other.
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.acquire_on(:no@where, :db, 3, 1))
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.release_on(:no@where, :db))
    assert :ok = CanalLock.release_on_async(:no@where, :db)
    fun = fn -> flunk("without a permit") end
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.with_permit_on(:no@where, :db, 3, 1, fun))
  end

  test "each function that waits or takes options passes them in the same order" do
    start_supervised!({CanalLock, max_per: 3})

    for wait <- [0, 5000, :infinity, [], [timeout_ms: 5000]],
        do: assert({:acquired, _} = CanalLock.acquire(:db, 5, 1, wait))

    assert :full = CanalLock.acquire(:db, 5, 1, 1)
    assert :full = CanalLock.acquire(:db, 9, 1, permits: 5)
    assert {:ok, 9} = CanalLock.with_permit(:db, 9, 1, [permits: 4], fn -> CanalLock.count(:db) end)
    assert {:ok, 6} = CanalLock.with_permit(:db, 2, 3, 5000, fn -> CanalLock.count(:db) end)
    assert {:acquired, 7} = CanalLock.acquire_on(node(), :db, 7, 1, permits: 2)
    assert {:error, :not_held} = CanalLock.release_on(node(), :db, permits: 8)
    assert :ok = CanalLock.release_on_async(node(), :db, permits: 2)
    assert :ok = CanalLock.release_on(node(), :db, permits: 1)
    assert {:ok, 8} = CanalLock.with_permit_on(node(), :db, 9, 1, [permits: 4], fn -> CanalLock.count(:db) end)
    assert {:error, :not_held} = CanalLock.release(:db, permits: 5)
    assert :ok = CanalLock.release(:db, permits: 3)
    assert :ok = CanalLock.release(:db, [])
    assert [] = CanalLock.held()
    # This node is not distributed, so it cannot connect to any other.
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.acquire_on(:no@where, :db, 3, 1, permits: 2))
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.release_on(:no@where, :db, permits: 2))
    assert :ok = CanalLock.release_on_async(:no@where, :db, permits: 2)
    fun = fn -> flunk("without a permit") end
    assert {{:nodedown, :no@where}, _} = catch_exit(CanalLock.with_permit_on(:no@where, :db, 3, 1, 5, fun))
  end

  test "requests wait, get another capacity, and are cancelled" do
    start_supervised!({CanalLock, max_per: 3, max_waiting: 2})
    assert {:acquired, 2} = CanalLock.request(:db, 1, 2, permits: 2)
    assert {:waiting, first} = CanalLock.request(:db, 1, 2)
    assert :full = CanalLock.request(:db, 1, 2, max_waiting: 1)
    assert {:waiting, second} = CanalLock.request(:db, 1, 2, max_waiting: 2)
    assert :full = CanalLock.request(:other, 0, 1)
    assert {2, %{waiting: 2}} = {CanalLock.waiting(:db), CanalLock.info()}
    assert :ok = CanalLock.resize(:db, 3, 1)
    assert_receive {:canal_lock, ^first, {:acquired, 3}}
    assert :ok = CanalLock.cancel(second)
    assert {:error, :not_waiting} = CanalLock.cancel(second)
    assert {:error, :not_waiting} = CanalLock.cancel(make_ref())
    assert {:waiting, third} = CanalLock.request(:db, 3, 1)
    assert :ok = stop_supervised(CanalLock)
    assert_receive {:canal_lock, ^third, :closed}
  end

  test "permits are given to another process" do
    start_supervised!({CanalLock, max_per: 3})
    {:ok, other} = Agent.start_link(fn -> [] end)
    {:acquired, 3} = CanalLock.acquire(:db, 3, 1, permits: 3)
    assert :ok = CanalLock.give(:db, other)
    assert :ok = CanalLock.give(:db, other, permits: 2)
    assert {:error, :not_held} = CanalLock.give(:db, other)
    assert [db: 3] = CanalLock.held(other)
    assert :ok = Agent.get(other, fn _ -> CanalLock.release(:db, permits: 3) end)
  end

  test "calls with wrong options raise and change nothing" do
    start_supervised!({CanalLock, max_per: 3})
    fun = fn -> flunk("called") end
    timeout = "the option :timeout_ms must be a non-negative integer below 2^32 (milliseconds) or infinity, got: "
    permits = "the option :permits must be a positive integer, got: "
    limit = "the option :max_waiting must be a non-negative integer or infinity, got: "

    waits = [
      {[timeout_ms: -1], timeout <> "-1"},
      {[timeout_ms: :never], timeout <> ":never"},
      {[permits: 0], permits <> "0"},
      {[permits: 2, max_waiting: 1.0], limit <> "1.0"},
      {[timeout: 5], "unknown keys [:timeout] in [timeout: 5]"},
      {[permits: 1, permits: 2], "duplicate keys [:permits]"}
    ]

    requests = [
      {[permits: -1], permits <> "-1"},
      {[max_waiting: :no], limit <> ":no"},
      {[timeout_ms: 5], "unknown keys"}
    ]

    others = [{[permits: :two], permits <> ":two"}, {[max_waiting: 5], "unknown keys [:max_waiting]"}]

    timeout =
      "the timeout must be a number of milliseconds, :infinity, or a keyword list such as [timeout_ms: 5000], got: "

    for {call, example, cases} <- [
          {&CanalLock.acquire(:db, 3, 1, &1), "[timeout_ms: 5000]", waits},
          {&CanalLock.acquire_on(:no@where, :db, 3, 1, &1), "[timeout_ms: 5000]", waits},
          {&CanalLock.with_permit(:db, 3, 1, &1, fun), "[timeout_ms: 5000]", waits},
          {&CanalLock.with_permit_on(:no@where, :db, 3, 1, &1, fun), "[timeout_ms: 5000]", waits},
          {&CanalLock.request(:db, 3, 1, &1), "[permits: 2]", requests},
          {&CanalLock.release(:db, &1), "[permits: 2]", others},
          {&CanalLock.release_on(:no@where, :db, &1), "[permits: 2]", others},
          {&CanalLock.release_on_async(:no@where, :db, &1), "[permits: 2]", others},
          {&CanalLock.give(:db, self(), &1), "[permits: 2]", others}
        ],
        keyword = "the options must be a keyword list such as #{example}, got: ",
        must = if(cases == waits, do: timeout, else: keyword),
        no_lists = [{[1], keyword <> "[1]"} | for(wrong <- [:soon, 1.5, %{a: 2}], do: {wrong, must <> inspect(wrong)})],
        {wrong, words} <- cases ++ no_lists do
      assert blamed(fn -> call.(wrong) end) =~ "(ArgumentError) " <> words
    end

    assert blamed(fn -> CanalLock.acquire(:db, 3, 1, -1) end) =~
             "4th argument: TimeoutOrOptions must be a non-negative integer below 2^32 (milliseconds), infinity, or "

    for wrong <- [1.5, :soon] do
      assert blamed(fn -> CanalLock.acquire_many([{:db, 3}], wrong) end) =~
               "the timeout must be a number of milliseconds"
    end

    assert blamed(fn -> CanalLock.cancel(:ref) end) =~ "1st argument: Ref must be a reference, got: ref"
    assert %{granted: 0, refused: 0, not_held: 0, keys: 0} = CanalLock.info()
  end

  test "P10: a child that crashes keeps its table, unless keep_on_crash is false" do
    start_supervised!({CanalLock, max_per: 3, sweep_interval_ms: 1000})
    assert %{keep_on_crash: true, sweep_interval_ms: 1000, max_per: 3} = state(:canal_lock)
    {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
    crash()
    assert [db: 1] = CanalLock.held()
    :ok = stop_supervised(CanalLock)

    start_supervised!({CanalLock, max_per: 3, keep_on_crash: false})
    {:acquired, 1} = CanalLock.acquire(:db, 3, 1)
    crash()
    assert [] = CanalLock.held()
  end

  # The state as `sys` shows it.
  defp state(manager) do
    {:status, _, _, [_, _, _, _, shown]} = :sys.get_status(manager)
    [state] = for {:data, [{~c"State", state}]} <- shown, do: state
    state
  end

  defp crash do
    manager = Process.whereis(:canal_lock)
    monitor = Process.monitor(manager)
    Process.exit(manager, :kill)
    assert_receive {:DOWN, ^monitor, _, _, :killed}
    await_restart()
  end

  defp await_restart do
    if Process.whereis(:canal_lock), do: :sys.get_state(:canal_lock), else: await_restart()
  end

  test "any process can start the manager, without a supervisor" do
    {:ok, manager} = CanalLock.start_link(max_per: 7, keep_on_crash: false)
    assert %{max_per: 7} = CanalLock.info()
    assert %{keep_on_crash: false, sweep_interval_ms: 5000} = state(manager)
    assert :ok = CanalLock.stop()
    assert :noproc = catch_exit(CanalLock.stop())
  end

  for {options, words} <- [
        {[max_per: 0], "the option :max_per must be a positive integer, got: 0"},
        {[max_per: "3"], ~s(the option :max_per must be a positive integer, got: "3")},
        {[max_per: 3, keep_on_crash: :yes], "the option :keep_on_crash must be true or false, got: :yes"},
        {[max_per: 3, sweep_interval_ms: 0],
         "the option :sweep_interval_ms must be a positive integer below 2^32 (milliseconds), got: 0"},
        {[max_per: 3, max_waiting: :infinity],
         "the option :max_waiting must be a non-negative integer, got: :infinity"},
        {[max_pre: 3], "unknown keys [:max_pre] in [max_pre: 3], the allowed keys are"},
        {[max_per: 3, max_per: 4], "duplicate keys [:max_per]"},
        {3, "the options must be a keyword list such as [max_per: 3], got: 3"},
        {%{max_per: 3}, "the options must be a keyword list such as [max_per: 3], got: %{max_per: 3}"}
      ] do
    test "wrong options: #{inspect(options)}" do
      options = unquote(Macro.escape(options))

      for wrong <- [&CanalLock.start_link/1, &CanalLock.child_spec/1] do
        error = assert_raise ArgumentError, fn -> wrong.(options) end
        assert Exception.message(error) =~ unquote(words)
      end

      refute Process.whereis(:canal_lock)
    end
  end

  test "an error names the wrong argument" do
    assert blamed(fn -> CanalLock.acquire(:db, 3, 1) end) =~ "canal_lock is not started"
    start_supervised!({CanalLock, max_per: 3})

    assert blamed(fn -> CanalLock.acquire(:db, :three, 1) end) =~
             "2nd argument: MaxPer must be a non-negative integer, got: three"

    assert blamed(fn -> CanalLock.with_permit(:db, 3, 1, :fun) end) =~
             "4th argument: Fun must be a function of arity 0, got: 'fun'"

    assert blamed(fn -> CanalLock.buckets(:db, 0) end) =~ "2nd argument: MaxPer must be a positive integer, got: 0"
    assert 0 = CanalLock.info().granted
  end

  test "top formats any key and holder as Elixir does" do
    start_supervised!({CanalLock, max_per: 3})

    keys = [
      {MyApp.Repo, "db"},
      "tenant\e[2J",
      ~D[2026-01-01],
      # Its implementation of Inspect raises.
      %{~D[2026-01-01] | month: :none},
      {:huge, Bitwise.bsl(1, 4_000_000)},
      Enum.reduce(1..1_000_000, :leaf, fn _, term -> {term} end),
      %{String.duplicate("x", 1_000_000) => Enum.to_list(1..1_000_000)}
    ]

    for {key, n} <- Enum.with_index(keys), _ <- n..9, do: {:acquired, _} = CanalLock.acquire(key, 9, 9)
    shown = ExUnit.CaptureIO.capture_io(fn -> assert :ok = CanalLock.top(interval_ms: 1) end)
    assert [_head, [_ | keys], [_ | holders] | _] = shown |> sections()

    assert [
             "10  {MyApp.Repo, \"db\"}",
             ~S(9  "tenant\e[2J"),
             "8  ~D[2026-01-01]",
             "7  #Inspect.Error<" <> _,
             "6  {:huge, :\"a huge integer\"}",
             "5  {{{{{{{{" <> _,
             "4  %{\"xxxxxxx" <> _
           ] = Enum.map(keys, &String.trim/1)

    assert [holder] = holders
    assert holder =~ ~r/49 +7 +\d+s  #{Regex.escape(inspect(self()))}  the caller$/
    assert shown |> String.split("\n") |> Enum.all?(&(String.length(&1) < 80))
  end

  # The lines of each section of a picture.
  defp sections(picture) do
    picture |> String.split("\n\n") |> Enum.map(&String.split(&1, "\n", trim: true))
  end

  test "top accepts its documented options and names a wrong one" do
    assert blamed(fn -> CanalLock.top() end) =~ "canal_lock is not started"
    start_supervised!({CanalLock, max_per: 3})
    for n <- 1..20, do: {:acquired, 1} = CanalLock.acquire({:key, n}, 3, 1)

    for {options, rows} <- [{[], 10}, {[rows: 3], 3}] do
      shown = ExUnit.CaptureIO.capture_io(fn -> assert :ok = CanalLock.top([interval_ms: 1] ++ options) end)
      assert [_, [_ | keys], [_, _] | _] = sections(shown)
      assert ^rows = length(keys)
    end

    for {options, words} <- [
          {%{rows: 3}, "the options must be a keyword list such as [rows: 20], got: %{rows: 3}"},
          {[rows: 0], "the option :rows must be a positive integer, got: 0"},
          {[interval_ms: :soon], "the option :interval_ms must be a positive integer below 2^32 (milliseconds)"},
          {[row: 3], "unknown keys [:row] in [row: 3]"},
          {[show: &inspect/1], "unknown keys [:show]"}
        ] do
      error = assert_raise ArgumentError, fn -> CanalLock.top(options) end
      assert Exception.message(error) =~ words
    end
  end

  # The error as a crash report shows it.
  defp blamed(fun) do
    fun.()
    flunk("no error")
  rescue
    error -> Exception.format(:error, error, __STACKTRACE__)
  end
end
