defmodule Mix.Tasks.Compile.CanalLockNative do
  @moduledoc false
  # Calls the scripts that rebar3 calls, with another destination: the folder of the application in `_build`.
  use Mix.Task.Compiler

  # Otherwise the task would run once at the top of an umbrella, which has no application to install into.
  @recursive true

  @impl true
  def run(_args) do
    app = Mix.Project.app_path()
    show_docs(app)

    # The script prints one line if it installed something, and nothing if the library was up to date.
    case escript("native/build.escript", Path.join(app, "native")) do
      {"", 0} ->
        link_priv(app)
        {:noop, []}

      {line, 0} ->
        link_priv(app)
        Mix.shell().info(String.trim_trailing(line))
        {:ok, []}

      {_, _} ->
        {:error, []}
    end
  end

  # The escript of this VM, which may not be the one on PATH.
  defp escript(script, folder) do
    escript = System.find_executable(Path.join([:code.root_dir(), "bin", "escript"])) || "escript"
    System.cmd(escript, [Path.join(__DIR__, script), folder], env: settings())
  end

  # Those of the project's configuration, as variables that are not set.
  defp settings do
    for {key, variable} <- [
          precompiled_url: "CANAL_LOCK_PRECOMPILED_URL",
          quorum: "CANAL_LOCK_QUORUM"
        ],
        System.get_env(variable, "") == "",
        {:ok, value} <- [Application.fetch_env(:canal_lock, key)] do
      {variable, %{true => "1", false => "0"}[value] || to_string(value)}
    end
  end

  # For `h :canal_lock`. The check is faster than starting another VM for nothing.
  defp show_docs(app) do
    stale? = fn source ->
      chunk = Path.join(app, "doc/chunks/#{Path.basename(source, ".erl")}.chunk")
      Mix.Utils.stale?([Path.join(__DIR__, source)], [chunk])
    end

    permits = ~w(src/canal_lock.erl src/canal_lock_telemetry.erl)
    quorum = ~w(src/quorum/canal_lock_quorum.erl src/quorum/canal_lock_quorum_telemetry.erl)
    singleton = ~w(src/quorum/canal_lock_quorum_singleton.erl)
    cluster = ~w(src/cluster/canal_lock_cluster.erl src/cluster/canal_lock_cluster_telemetry.erl)

    if Enum.any?(permits ++ quorum ++ singleton ++ cluster, stale?) do
      escript("scripts/shell_docs.escript", Path.join(app, "doc"))
    end
  end

  # If the source has a `priv` (where rebar3 installs), Mix installs it before any compiler runs. Into a folder it would
  # copy in place, over the library that running VMs have loaded. A link it only redirects, and this restores the link.
  defp link_priv(app) do
    priv = Path.join(app, "priv")

    if File.read_link(priv) != {:ok, "native"} do
      File.rm_rf!(priv)
      # A system without links does not allow loaded files to be overwritten either.
      with {:error, _} <- File.ln_s("native", priv), do: File.cp_r!(Path.join(app, "native"), priv)
    end
  end
end

defmodule CanalLock.MixProject do
  use Mix.Project

  # Mix ignores src/canal_lock.app.src if there is a mix.exs, so this reads it.
  {:ok, [{:application, :canal_lock, spec}]} = :file.consult(Path.join(__DIR__, "src/canal_lock.app.src"))
  @app_src spec
  # As mix.exs, it is in the package.
  {:ok, rebar_config} = :file.consult(Path.join(__DIR__, "rebar.config"))
  @ex_doc rebar_config[:ex_doc]

  def project do
    [
      app: :canal_lock,
      version: to_string(@app_src[:vsn]),
      description: to_string(@app_src[:description]),
      elixir: "~> 1.14",
      compilers: [:canal_lock_native | Mix.compilers()],
      # Elixir 1.19 and later warn about files in test/ that are neither tests nor ignored.
      test_ignore_filters: [&String.starts_with?(&1, "test/packaging/downstream/")],
      erlc_options: [:debug_info],
      deps: [],
      # For `mix hex.publish` and `mix docs`, whose tools the publisher has installed: they are no dependencies.
      name: "canal_lock",
      source_url: List.first(Map.values(links())),
      docs: [{:source_ref, "v#{@app_src[:vsn]}"} | @ex_doc],
      package: package()
    ]
  end

  def application do
    [extra_applications: @app_src[:applications] -- [:kernel, :stdlib]] ++
      Keyword.take(@app_src, [:mod, :registered, :env])
  end

  defp package do
    [
      licenses: Enum.map(@app_src[:licenses], &to_string/1),
      links: links(),
      build_tools: Enum.map(@app_src[:build_tools], &to_string/1),
      files: Enum.map(@app_src[:files], &to_string/1)
    ]
  end

  defp links, do: Map.new(@app_src[:links], fn {name, url} -> {to_string(name), to_string(url)} end)
end
