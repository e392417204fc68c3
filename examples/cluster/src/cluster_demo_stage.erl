%% Runs a demo and ends the VM: with 0, or with 1 if its verdict says that a promise was broken, or if it crashes.
-module(cluster_demo_stage).

-export([main/2, act/2]).

%% `Run' returns the verdict, and `Lines' what to print of it.
-spec main(Run, Lines) -> no_return() when
    Run :: fun(() -> Verdict),
    Lines :: fun((Verdict) -> [iodata()]),
    Verdict :: #{broken := [term()], atom() => term()}.
main(Run, Lines) ->
    %% When SIGTERM stops the demo, its exit status must not look like a verdict.
    ok = os:set_signal(sigterm, default),
    %% A crash of any part stops the demo and its nodes.
    Main = self(),
    {_, Monitor} = spawn_monitor(fun() -> Main ! {verdict, Run()} end),
    receive
        {verdict, #{broken := Broken} = Verdict} ->
            lists:foreach(fun cluster_demo_screen:say/1, ["" | Lines(Verdict)]),
            halt(case Broken of [] -> 0; _ -> 1 end);
        {'DOWN', Monitor, process, _, Reason} ->
            cluster_demo_screen:say(io_lib:format("The demo has crashed: ~tp", [Reason])),
            halt(1)
    end.

%% Runs the acts one after the other, until a wait in one of them times out, which throws `{missing, What}'.
-spec act(Demo, [fun((Demo) -> Demo)]) -> {Demo, Missing :: [term()]}.
act(Demo, []) ->
    {Demo, []};
act(Demo, [Act | Acts]) ->
    try Act(Demo) of
        Next -> act(Next, Acts)
    catch
        throw:{missing, What} -> {Demo, [What]}
    end.
