defmodule CanalLock.DocTest do
  # Runs the sessions in the docs of the modules. The Elixir session of the README is one of them.
  use ExUnit.Case, async: false

  describe "with a manager:" do
    setup do
      start_supervised!({CanalLock, max_per: 3})
      :ok
    end

    doctest CanalLock
  end

  describe "with quorum locks:" do
    setup do
      start_supervised!({CanalLock.Quorum, members: [node()]})
      await_ready()
      :ok
    end

    doctest CanalLock.Quorum
    doctest CanalLock.Quorum.Singleton
  end

  describe "with cluster permits:" do
    setup do
      start_supervised!(CanalLock)
      start_supervised!({CanalLock.Cluster, members: [node()]})
      await_session()
      :ok
    end

    doctest CanalLock.Cluster
  end

  defp await_session do
    if CanalLock.Cluster.session() == :none, do: await_session()
  end

  # A lock waits by itself, other calls do not.
  defp await_ready do
    if not CanalLock.Quorum.ready?(), do: await_ready()
  end

  test "every function is documented; all but these have a session" do
    assert ["stop/0"] = without_session(CanalLock)
    assert ["reset_members/1", "stop/0"] = without_session(CanalLock.Quorum)
    assert [] = without_session(CanalLock.Quorum.Singleton)
    assert ["stop/0"] = without_session(CanalLock.Cluster)
  end

  test "the docs have no emphasis that IEx shows wrong" do
    for module <- [CanalLock, CanalLock.Quorum, CanalLock.Quorum.Singleton, CanalLock.Cluster] do
      {:docs_v1, _, _, _, head, _, docs} = Code.fetch_docs(module)
      texts = for %{"en" => text} <- [head | Enum.map(docs, &elem(&1, 3))], do: text
      assert [] = for(text <- texts, found <- Regex.scan(~r/(?<!\*)\*\w[^*\n]*\*[^\s*]/, text), do: found)
    end
  end

  defp without_session(module) do
    {:docs_v1, _, :elixir, "text/markdown", %{"en" => _}, _, docs} = Code.fetch_docs(module)
    functions = for {{:function, name, arity}, _, _, doc, _} <- docs, do: {"#{name}/#{arity}", doc}
    assert [] = for({function, :none} <- functions, do: function)
    assert [] = for({{:type, name, _}, _, _, :none, _} <- docs, do: name)
    Enum.sort(for({function, %{"en" => text}} <- functions, not (text =~ "iex>"), do: function))
  end

  test "the docs of CanalLock are parts of the README" do
    {:docs_v1, _, _, _, %{"en" => text}, _, _} = Code.fetch_docs(CanalLock)
    readme = File.read!("README.md")
    parts = String.split(text, "\n\n", trim: true)
    assert [] = for(part <- parts, not (readme =~ String.trim(part)), do: part)

    for words <- ["limits how many processes", "When not to use it", "CanalLock.with_permit"] do
      assert text =~ words
    end
  end
end
