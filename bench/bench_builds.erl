%% The builds of the library that are compared, and the VMs in which they are measured. This VM measures nothing.
%%
%% The subject `ours' is the build of this checkout. With another build, the subject `other' makes the same calls in VMs
%% of its own. All subjects that do not use the library are in the VMs of `ours'.
-module(bench_builds).

-export([define/2, ours/0, with_ours/1, library/1, in_vms/1, call/2, once/2]).
%% Called in the other VM.
-export([serve/0, ask/1]).

-export_type([vm/0]).

-type vm() :: pid().

%% Longer than the start of a VM takes on a busy machine.
-define(BOOT_MS, 120_000).

%% Folders with `ebin' and `priv'.
-spec define(This :: file:filename(), [Other :: file:filename()]) -> ok.
define(This, Other) ->
    Libraries = [{ours, This} | [{other, Library} || Library <- Other]],
    persistent_term:put(?MODULE, maps:from_list(Libraries)).

%% The subjects that are builds of the library.
-spec ours() -> [ours | other, ...].
ours() ->
    [Subject || Subject <- [ours, other], is_map_key(Subject, persistent_term:get(?MODULE))].

%% Where `ours' is a subject, `other' is one too.
-spec with_ours([bench_results:subject()]) -> [bench_results:subject()].
with_ours(Subjects) ->
    lists:append([case Subject of ours -> ours(); _ -> [Subject] end || Subject <- Subjects]).

-spec library(bench_results:subject()) -> file:filename().
library(other) -> maps:get(other, persistent_term:get(?MODULE));
library(_) -> maps:get(ours, persistent_term:get(?MODULE)).

%% Calls the function with another one: from a subject to its VM, which stays until the function returns.
-spec in_vms(fun((fun((bench_results:subject()) -> vm())) -> Result)) -> Result.
in_vms(Fun) ->
    Vms = #{ours := Ours} = maps:from_list([{Subject, start(Subject)} || Subject <- ours()]),
    try
        Fun(fun(Subject) -> maps:get(Subject, Vms, Ours) end)
    after
        lists:foreach(fun peer:stop/1, maps:values(Vms))
    end.

%% A VM with the library of this subject.
start(Subject) ->
    Paths = [filename:dirname(code:which(?MODULE)), filename:join(library(Subject), "ebin")],
    %% +Bd: stops on Ctrl-C like the calling VM.
    Arguments = ["+Bd" | lists:append([["-pa", Path] || Path <- Paths])],
    {ok, Vm, _} = peer:start_link(#{connection => standard_io, args => Arguments, wait_boot => ?BOOT_MS}),
    ok = peer:call(Vm, ?MODULE, serve, [], infinity),
    true = filename:absname(library(Subject)) =:= peer:call(Vm, code, lib_dir, [canal_lock], infinity),
    Vm.

%% Calls the function in the VM: always in the same process, which keeps linked processes and its dictionary.
-spec call(vm(), fun(() -> Result)) -> Result.
call(Vm, Fun) ->
    peer:call(Vm, ?MODULE, ask, [Fun], infinity).

%% Calls the function in a new VM, without memory and processes of earlier samples.
-spec once(bench_results:subject(), fun(() -> Result)) -> Result.
once(Subject, Fun) ->
    Vm = start(Subject),
    try
        call(Vm, Fun)
    after
        peer:stop(Vm)
    end.

-spec serve() -> ok.
serve() ->
    true = register(?MODULE, spawn(fun answer/0)),
    ok.

answer() ->
    receive
        {Caller, Ref, Fun} ->
            Caller ! {Ref, Fun()},
            answer()
    end.

-spec ask(fun(() -> Result)) -> Result.
ask(Fun) ->
    Ref = monitor(process, ?MODULE),
    ?MODULE ! {self(), Ref, Fun},
    receive
        {Ref, Result} ->
            true = demonitor(Ref, [flush]),
            Result;
        {'DOWN', Ref, process, _, Reason} ->
            error(Reason)
    end.
