%% A child of a singleton that records in a file when it runs. So a test sees two copies at a time without asking the
%% locks, also of nodes that are killed: a copy writes the time before anything else, and then again every millisecond,
%% also while it ignores that it must stop. All nodes of a machine share the clock.
-module(test_singleton_witness).

-behaviour(gen_server).

-export([child/2, runs/1, overlaps/1, forget/2]).
-export([start_link/2, start_tree/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

%% `init_ms': how long its start takes. `stop_ms': how long it goes on when it must stop. `is_tree': the child is a
%% supervisor of the process. Others are those of a child specification.
-type options() :: #{
    init_ms => non_neg_integer(), stop_ms => timeout(), is_tree => boolean(), shutdown => timeout(), restart => atom()
}.

-spec child(file:filename(), options()) -> supervisor:child_spec().
child(Folder, Options) ->
    Start = case Options of #{is_tree := true} -> start_tree; _ -> start_link end,
    (maps:with([restart, shutdown], Options))#{id => witness, start => {?MODULE, Start, [Folder, Options]}}.

%% The copies that have run, in the order of their starts: from when, and until when at least, in nanoseconds; the node;
%% and whether it was asked to stop.
-spec runs(file:filename()) -> [{From :: integer(), Until :: integer(), node(), WasStopped :: boolean()}].
runs(Folder) ->
    Read = [{file:read_file(File), filename:basename(File)} || File <- filelib:wildcard(filename:join(Folder, "*#*"))],
    lists:sort([
        {From, Until, list_to_atom(hd(string:split(Name, "#"))), Stopped =/= <<>>}
     || {{ok, <<From:64, Until:64, Stopped/binary>>}, Name} <- Read
    ]).

%% The pairs of copies that ran at the same time.
-spec overlaps(file:filename()) -> [{tuple(), tuple()}].
overlaps(Folder) ->
    Runs = runs(Folder),
    [
        {One, Other}
     || One = {From, Until, _, _} <- Runs, Other = {Start, _, _, _} <- Runs -- [One], From =< Start, Start =< Until
    ].

%% Forgets the copies of a node.
-spec forget(file:filename(), node()) -> ok.
forget(Folder, Node) ->
    lists:foreach(fun file:delete/1, filelib:wildcard(filename:join(Folder, lists:concat([Node, "#*"])))).

start_link(Folder, Options) ->
    gen_server:start_link(?MODULE, {Folder, Options}, []).

start_tree(Folder, Options) ->
    {ok, test_setup:supervise(0, [child(Folder, Options#{is_tree := false})])}.

init({Folder, Options}) ->
    Now = now_ns(),
    _ = process_flag(trap_exit, true),
    Name = lists:concat([node(), "#", Now]),
    {ok, File} = file:open(filename:join(Folder, Name), [write, raw, binary]),
    ok = file:pwrite(File, 0, <<Now:64, Now:64>>),
    ok = go_on(maps:get(init_ms, Options, 0), File),
    {ok, {File, Options}, 0}.

handle_call(_, _From, State) ->
    {reply, ok, State, 0}.

handle_cast(end_it, State) ->
    {stop, normal, State}.

handle_info(timeout, State = {File, _}) ->
    ok = go_on(0, File),
    {noreply, State, 0}.

terminate(_, {File, Options}) ->
    ok = file:pwrite(File, 16, "stopped"),
    go_on(maps:get(stop_ms, Options, 0), File).

go_on(infinity, File) -> go_on_until(infinity, File);
go_on(For_ms, File) -> go_on_until(now_ns() + For_ms * 1_000_000, File).

%% An atom is after each number.
go_on_until(End_ns, File) ->
    Now = now_ns(),
    ok = file:pwrite(File, 8, <<Now:64>>),
    receive
    after 1 -> ok
    end,
    case Now < End_ns of
        true -> go_on_until(End_ns, File);
        false -> ok
    end.

now_ns() ->
    os:perf_counter(nanosecond).
