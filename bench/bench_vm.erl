%% Measures in a VM of its own: where earlier cases have been, memory is not what it was, and processes are about.
-module(bench_vm).

-export([call/4]).

%% The result of Module:Function(Arguments...) there. Subject names the module that is measured.
-spec call(bench_cases:subject(), module(), atom(), [term()]) -> term().
call(Subject, Module, Function, Arguments) ->
    Folders = [filename:dirname(code:which(M)) || M <- [Module, bench_subjects:module(Subject)]],
    Path = lists:append([["-pa", Folder] || Folder <- Folders]),
    %% Ends on Ctrl-C, as the VM does that waits for it.
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, args => ["+Bd" | Path]}),
    try
        peer:call(Peer, Module, Function, Arguments, infinity)
    after
        peer:stop(Peer)
    end.
