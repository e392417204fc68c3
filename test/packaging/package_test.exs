defmodule CanalLock.PackageTest do
  # What `mix hex.publish` and `rebar3 hex publish` would pack and document: mix.exs reads both other files.
  use ExUnit.Case, async: true

  test "the metadata are complete" do
    assert %{name: "canal_lock", description: description, package: package} = Map.new(config())
    assert String.length(description) in 1..300
    assert package[:licenses] == ["Apache-2.0"]
    assert package[:build_tools] == ["mix", "rebar3"]
    assert config()[:source_url] == List.first(Map.values(package[:links]))
    {:ok, rebar} = :file.consult("rebar.config")
    assert rebar[:hex] == [doc: %{provider: :ex_doc}]
    # They would be fetched in each build.
    assert [] == config()[:deps] ++ rebar[:deps] ++ Keyword.take(rebar, [:plugins, :project_plugins])
  end

  test "every page is an extra, and in one group" do
    assert Enum.sort(Path.wildcard("docs/*.md") ++ Path.wildcard("*.md")) == Enum.sort(pages())
    grouped = Enum.flat_map(config()[:docs][:groups_for_extras], fn {_, pages} -> pages end)
    assert Enum.sort(grouped) == Enum.sort(pages() -- ["README.md"])
  end

  test "every extra, and every file that one links to, exists and is packed" do
    links = for page <- pages(), link <- links(page), do: Path.relative_to_cwd(Path.expand(link, Path.dirname(page)))
    assert "examples/router/README.md" in links
    assert [] == Enum.reject(extras() ++ links ++ config()[:package][:files], &File.exists?/1)
    assert [] == Enum.reject(extras() ++ links, &packed?/1)
  end

  # Plots are copied to where the pages refer to them.
  test "every plot of a page is in the documentation" do
    assets = for {from, to} <- config()[:docs][:assets], file <- File.ls!(from), do: Path.join(to, file)
    plots = for page <- pages(), link <- links(page), Path.extname(link) == ".svg", do: link
    assert [] != plots
    assert [] == plots -- assets
  end

  defp config, do: Mix.Project.config()
  defp extras, do: config()[:docs][:extras]
  defp pages, do: Enum.filter(extras(), &(Path.extname(&1) == ".md"))

  defp packed?(file) do
    Enum.any?(config()[:package][:files], &(file == &1 or String.starts_with?(file, &1 <> "/")))
  end

  # The relative links, without anchors.
  defp links(page) do
    for [_, link] <- Regex.scan(~r/\]\(([^)#\s]+)/, File.read!(page)), not String.contains?(link, ":"), do: link
  end
end
