%% Runs a measurement in a new VM, without memory and processes left over by earlier cases.
-module(bench_vm).

-export([call/4]).

%% Returns the result of Module:Function(Arguments...) in the new VM. Subject names the measured module.
-spec call(bench_cases:subject(), module(), atom(), [term()]) -> term().
call(Subject, Module, Function, Arguments) ->
    Folders = [filename:dirname(code:which(M)) || M <- [Module, bench_subjects:module(Subject)]],
    Path = lists:append([["-pa", Folder] || Folder <- Folders]),
    %% +Bd: stops on Ctrl-C like the calling VM.
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, args => ["+Bd" | Path]}),
    try
        peer:call(Peer, Module, Function, Arguments, infinity)
    after
        peer:stop(Peer)
    end.
