defmodule CanalLock.Quorum.Singleton do
  @moduledoc """
  A process, or a tree of processes, of which one copy runs in the cluster: while its node holds a quorum lock.

  Add the same child to the supervision tree of each node, after `CanalLock.Quorum`:

      children = [
        {CanalLock.Quorum, quorum_options},
        {CanalLock.Quorum.Singleton, name: :mailer, child: {MyApp.Mailer, []}}
      ]

  The child is stopped when the lock is at risk, killed before it is lost, and started where it is granted next.
  `m::canal_lock_quorum_singleton` has the details, and the limits.
  """

  @typedoc """
  `:name`, the same on all nodes. `:child`: what `Supervisor.child_spec/2` takes, or a function that returns it for the
  lock that is held, of which the child can send the fence to a resource.
  """
  @type option :: {:name, CanalLock.Quorum.name()} | {:child, child | (CanalLock.Quorum.lock() -> child)}

  @typedoc "As in the list of a supervisor."
  @type child :: Supervisor.child_spec() | {module, term} | module

  @doc """
  The child specification of the singleton process, for a supervisor. Takes the options of `start_link/1`.

      iex> CanalLock.Quorum.Singleton.child_spec(name: :mailer, child: MyApp.Mailer).id
      {CanalLock.Quorum.Singleton, :mailer}
  """
  @spec child_spec([option]) :: Supervisor.child_spec()
  def child_spec(options) do
    %{id: {__MODULE__, options[:name]}, start: {__MODULE__, :start_link, [options]}, shutdown: :infinity}
  end

  @doc """
  Starts the singleton process of this node, linked to the caller. Options are `t:option/0`. Raises `ArgumentError` if
  an option is wrong, or if the quorum locks are not started on this node.

      iex> CanalLock.Quorum.Singleton.start_link(name: :mailer)
      ** (ArgumentError) the option :child is missing; it must be a child specification or a function of arity 1
  """
  @spec start_link([option]) :: {:ok, pid}
  def start_link(options) do
    options
    |> CanalLock.Options.validate!([:name, :child], "[name: :mailer, child: MyApp.Mailer]", fn options ->
      options |> specified() |> :canal_lock_quorum_singleton.wrong_option()
    end)
    |> specified()
    |> :canal_lock_quorum_singleton.start_link()
  end

  defp specified(%{child: child} = options) when is_function(child, 1) do
    %{options | child: &Supervisor.child_spec(child.(&1), [])}
  end

  defp specified(%{child: child} = options) when not is_function(child) do
    %{options | child: Supervisor.child_spec(child, [])}
  end

  defp specified(options), do: options

  @doc """
  The process of the child, from any member or client, or `nil`. It can have ended, or moved to another node, when the
  call returns. Cost: `CanalLock.Quorum.holder/1`, which asks each node, and a call to the node of the child.

      iex> test = self()
      iex> child = {Agent, fn -> send(test, self()) end}
      iex> {:ok, _pid} = CanalLock.Quorum.Singleton.start_link(name: :one, child: child)
      iex> receive do: (agent -> CanalLock.Quorum.Singleton.whereis(:one) == agent)
      true
  """
  @spec whereis(CanalLock.Quorum.name()) :: pid | nil
  def whereis(name) do
    with :undefined <- :canal_lock_quorum_singleton.whereis(name), do: nil
  end
end
