defmodule Downstream.MixProject do
  use Mix.Project

  def project do
    [
      app: :downstream,
      version: "1.0.0",
      deps: [{:canal_lock, git: "https://example.org/canal_lock.git", branch: "main", manager: :rebar3}]
    ]
  end

  def application do
    [mod: {Downstream.Application, {:canal_lock, 3}}]
  end
end
