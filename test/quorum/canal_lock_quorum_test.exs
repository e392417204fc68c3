defmodule CanalLock.QuorumTest do
  # What is said here in Elixir alone. All else is tested in Erlang.
  use ExUnit.Case, async: false
  alias CanalLock.Quorum

  test "it has every function of the Erlang module" do
    ours = [__info__: 1, module_info: 0, module_info: 1, child_spec: 1, start_link: 1]
    erlangs = :canal_lock_quorum.module_info(:exports) -- [module_info: 0, module_info: 1]
    assert [] = erlangs -- Quorum.module_info(:exports)
    assert [] = Quorum.module_info(:exports) -- (erlangs ++ ours)
  end

  test "each function passes its arguments on in their order" do
    start_supervised!({Quorum, members: [node()]})
    assert {:ok, lock} = Quorum.lock(:a, 5000)
    assert Quorum.held(lock)
    assert Quorum.fence(lock) > 0
    assert {:error, :timeout} = Quorum.rlock(:a, 20)
    assert {[%{names: [:a], mode: :write}], []} = Quorum.locks()
    assert :ok = Quorum.unlock(lock)
    assert {:ok, reader} = Quorum.rlock(:a, 5000)
    assert {:error, :timeout} = Quorum.lock_many([:a, :b], 20)
    assert :ok = Quorum.force_unlock(:a)
    assert_receive {:canal_lock, :lost, ^reader}, 5000
    assert {:error, :not_held} = Quorum.try_unlock(reader)
    assert {:ok, false} = Quorum.with_lock(:a, 5000, &(&1 == reader))
    assert %{quorum: true, held: 0} = Quorum.status()
  end

  test "a child is a supervisor that is restarted" do
    first = start_supervised!({Quorum, members: [node()]})
    assert %{id: Quorum, type: :supervisor} = Quorum.child_spec(members: [node()])
    {:ok, lock} = Quorum.lock(:a, 5000)
    :ok = Quorum.stop()
    assert_receive {:canal_lock, :lost, ^lock}, 5000
    assert {:ok, _} = lock_anew(:a)
    assert Process.whereis(:canal_lock_quorum) != first
  end

  test "a wrong option is named" do
    for {options, words} <- [
          {%{members: [node()]}, ~r/^not a keyword list/},
          {[members: []], ~r/^members are 1 to 16 nodes/},
          {[members: [node()], cookie: 1], ~r/^no such option: cookie/},
          {[members: [node()], rules: %{heartbeat_ms: 0}], ~r/^rules: heartbeat_ms is not a positive integer/},
          {[members: [node()], fence_file: 7], ~r/^fence_file is not the name of a file/}
        ] do
      assert_raise ArgumentError, words, fn -> Quorum.start_link(options) end
    end
  end

  # Once the supervisor has started it again.
  defp lock_anew(name) do
    Quorum.lock(name, 5000)
  rescue
    ArgumentError -> lock_anew(name)
  end
end
