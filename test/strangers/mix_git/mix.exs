defmodule Stranger.MixProject do
  use Mix.Project

  def project do
    [
      app: :stranger,
      version: "1.0.0",
      deps: [{:canal_lock, git: "https://example.org/canal_lock.git", branch: "main"}]
    ]
  end

  def application do
    [mod: {Stranger.Application, {CanalLock, max_per: 3}}]
  end
end
