defmodule CanalLock.QuorumTest do
  # What only the Elixir module does. The Erlang suites test the rest.
  use ExUnit.Case, async: false
  alias CanalLock.Quorum

  test "exports every function of :canal_lock_quorum, predicates with a question mark" do
    ours = [__info__: 1, module_info: 0, module_info: 1, child_spec: 1, start_link: 1, held?: 1, ready?: 0]
    erlangs = :canal_lock_quorum.module_info(:exports) -- [module_info: 0, module_info: 1, is_held: 1, ready: 0]
    assert [] = erlangs -- Quorum.module_info(:exports)
    assert [] = Quorum.module_info(:exports) -- (erlangs ++ ours)
  end

  test "each function passes its arguments in the same order" do
    start_supervised!({Quorum, members: [node()]})
    assert {:ok, lock} = Quorum.lock(:a, 5000)
    assert Quorum.held?(lock)
    assert Quorum.ready?()
    assert Quorum.fence(lock) > 0
    assert {:error, :timeout} = Quorum.rlock(:a, 20)
    assert {[%{names: [:a], held: true}], []} = Quorum.holder(:a)
    assert {[], []} = Quorum.waiting(:a)
    assert {[%{names: [:a], mode: :write}], []} = Quorum.locks()
    assert :ok = Quorum.unlock(lock)
    assert {:ok, reader} = Quorum.rlock(:a, 5000)
    assert {:error, :timeout} = Quorum.lock_many([:a, :b], 20)
    assert {:ok, _} = Quorum.rlock_many([:a, :b], :infinity)
    assert {:ok, true} = Quorum.with_rlock(:a, 5000, &Quorum.held?/1)
    assert :ok = Quorum.force_unlock(:a)
    assert_receive {:canal_lock_quorum, :lost, ^reader}, 5000
    refute Quorum.held?(reader)
    assert {:error, :not_held} = Quorum.unlock_async(reader)
    assert {:ok, false} = Quorum.with_lock(:a, 5000, &(&1 == reader))
    assert %{quorum: true, held: 0} = Quorum.status()
    assert {:ok, 0} = Quorum.change_members([node()])
    assert_raise ArgumentError, ~r/1st argument: Members must contain this node/, fn -> Quorum.reset_members([:a@b]) end
  end

  test "top formats names as Elixir does, accepts its documented options and names a wrong one" do
    message = assert_raise(ArgumentError, fn -> Quorum.top() end) |> Exception.message()
    assert message =~ "canal_lock_quorum is not started"
    start_supervised!({Quorum, members: [node()]})
    {:ok, _lock} = Quorum.lock({:invoice, "17"}, 5000)
    waiter = Task.async(fn -> Quorum.lock({:invoice, "17"}, 60_000) end)
    await_waiting(1)

    for options <- [[], [rows: 1]] do
      shown = ExUnit.CaptureIO.capture_io(fn -> assert :ok = Quorum.top([interval_ms: 1] ++ options) end)
      assert shown =~ ~s(#{inspect(self())}  {:invoice, "17"})
    end

    Task.shutdown(waiter, :brutal_kill)

    for {options, words} <- [
          {%{rows: 1}, ~r/^the options must be a keyword list such as \[rows: 20\], got: %{/},
          {[show: &inspect/1], ~r/^unknown keys \[:show\]/},
          {[rows: 0], ~r/^the option :rows must be a positive integer, got: 0$/}
        ] do
      assert_raise ArgumentError, words, fn -> Quorum.top(options) end
    end
  end

  test "a child is a supervisor that is restarted" do
    first = start_supervised!({Quorum, members: [node()]})
    assert %{id: Quorum, type: :supervisor} = Quorum.child_spec(members: [node()])
    {:ok, lock} = Quorum.lock(:a, 5000)
    :ok = Quorum.stop()
    assert_receive {:canal_lock_quorum, :lost, ^lock}, 5000
    assert {:ok, _} = lock_after_restart(:a)
    assert Process.whereis(:canal_lock_quorum) != first
  end

  test "a wrong option is named" do
    for {options, words} <- [
          {%{members: [node()]}, ~r/^the options must be a keyword list such as \[members: \[node\(\)\]\], got: %{/},
          {[members: []], ~r/^the option :members must be a list of 1 to 16 nodes.*, got: \[\]$/},
          {[members: [node()], cookie: 1], ~r/^unknown keys \[:cookie\]/},
          {[members: [node()], lease_ms: 999], ~r/^the option :lease_ms must be an integer from 1000 to .*, got: 999$/},
          {[members: [node()], state_file: 7], ~r/^the option :state_file must be the name of a file .*, got: 7$/},
          {[members: [node()], state_file: :none], ~r/^the option :state_file must be the name of a file.*:none$/}
        ] do
      assert_raise ArgumentError, words, fn -> Quorum.start_link(options) end
    end
  end

  test "a singleton is a child, which a module, a tuple or a function specifies" do
    start_supervised!({Quorum, members: [node()]})
    test = self()
    run = fn -> send(test, {:runs, self()}) end

    for child <- [{Agent, run}, %{id: :it, start: {Agent, :start_link, [run]}}, fn _lock -> {Agent, run} end] do
      start_supervised!({Quorum.Singleton, name: :one, child: child})
      assert_receive {:runs, agent}, 5000
      assert Quorum.Singleton.whereis(:one) == agent
      :ok = stop_supervised({Quorum.Singleton, :one})
      refute Process.alive?(agent)
      assert Quorum.Singleton.whereis(:one) == nil
    end

    start_supervised!({Quorum.Singleton, name: :fenced, child: &{Task, fn -> send(test, Quorum.fence(&1)) end}})
    assert_receive fence when is_integer(fence), 5000
  end

  test "a wrong option of a singleton is named" do
    for {options, words} <- [
          {%{name: :one}, ~r/^the options must be a keyword list such as \[name: :mailer, child: .*\], got: %{/},
          {[name: 1.0, child: Agent], ~r/^the option :name must be the name of a lock, .*, got: 1.0$/},
          {[name: :one, child: fn -> 0 end], ~r/^the option :child must be a child specification or a function of ari/},
          {[name: :one, id: 1], ~r/^unknown keys \[:id\]/},
          {[name: :one, child: {Agent, fn -> 0 end}], ~r/canal_lock_quorum is not started on this node/}
        ] do
      assert_raise ArgumentError, words, fn -> Quorum.Singleton.start_link(options) end
    end
  end

  defp await_waiting(count) do
    if Quorum.status().waiting != count, do: await_waiting(count)
  end

  # Repeats the call until the supervisor has restarted the quorum locks.
  defp lock_after_restart(name) do
    Quorum.lock(name, 5000)
  rescue
    ArgumentError -> lock_after_restart(name)
  end
end
