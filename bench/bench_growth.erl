%% The growth of memory: as the table of permits reports it, as the VM does, and as the operating system does.
-module(bench_growth).

-export([account/1, by/3]).

%% own: reported by the subject. vm: erlang:memory(total), which includes the table's. os: the resident set, only with
%% /proc.
-type account() :: #{own | vm | os => number()}.

-spec account(bench_results:subject()) -> account().
account(Subject) ->
    true = erlang:garbage_collect(),
    maps:from_list([{vm, erlang:memory(total)} | resident() ++ own(Subject)]).

own(none) ->
    [];
%% The public table and the manager's.
own(ets) ->
    Words = [ets:info(Table, memory) || Table <- [test_original, canal_lock_ets_monitors]],
    [{own, lists:sum(Words) * erlang:system_info(wordsize)}];
own(_) ->
    #{memory := Bytes} = canal_lock:info(),
    [{own, Bytes}].

resident() ->
    case file:read_file("/proc/self/status") of
        {ok, Status} ->
            {match, [KB]} = re:run(Status, "^VmRSS:\\s*(\\d+) kB$", [multiline, {capture, all_but_first, list}]),
            [{os, list_to_integer(KB) * 1024}];
        {error, _} ->
            []
    end.

%% From one account to another, divided by the count.
-spec by(Count :: pos_integer(), Before :: account(), After :: account()) -> account().
by(Count, Before, After) ->
    maps:map(fun(Of, Bytes) -> (Bytes - maps:get(Of, Before)) / Count end, After).
