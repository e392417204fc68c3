%% Builds a variant of the native library that injects failures, and loads it in a VM.
%%
%% The variant is the released library with one more feature (native/permit_table/src/inject.rs). Its stub module is
%% compiled from the abstract code of the released one, with the function arm/2 and the path of the variant.
-module(test_fault_injection).

-export([build/0, in_a_vm/2, arm/2, disarm/0, natives/0]).

%% An injected failure: the calling process panics, one allocation fails, all allocations fail from then on, or the
%% system refuses all memory barriers from then on.
-type failure() :: panic | one_allocation | all_allocations | barriers.

-export_type([failure/0]).

%% Builds the library with cargo, if it is not up to date.
-spec build() -> file:filename().
build() ->
    Folder = filename:absname("_build/faults"),
    Script = filename:absname("native/build.escript"),
    Escript = filename:join([code:root_dir(), "bin", "escript"]),
    case test_program:run(Escript, [Script, "--faults", Folder]) of
        {0, _} -> filename:join(Folder, "canal_lock_nif");
        {Status, Output} -> error({not_built, Status, Output})
    end.

%% Calls the function in a new VM, so that only that VM stops if the library crashes it.
-spec in_a_vm(Library :: file:filename(), fun(() -> Answer)) -> Answer.
in_a_vm(Library, Test) ->
    test_setup:in_a_vm(["+S", "2:2"], fun() ->
        load(Library),
        Test()
    end).

load(Library) ->
    {ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}} =
        beam_lib:chunks(code:which(canal_lock_nif), [abstract_code]),
    Variant = lists:append([variant(Form, Library) || Form <- Forms]),
    {ok, Module, Code} = compile:forms(Variant, [nowarn_unused_function]),
    {module, Module} = code:load_binary(Module, "of the tests", Code),
    ok.

variant({function, Line, library, 0, _}, Library) ->
    [{function, Line, library, 0, [clause(Line, [], erl_parse:abstract(Library, Line))]}];
variant({attribute, Line, on_load, _} = OnLoad, _Library) ->
    [{attribute, Line, export, [{arm, 2}]}, OnLoad];
variant({eof, Line}, _Library) ->
    Wildcards = [{var, Line, '_'}, {var, Line, '_'}],
    NotLoaded = {call, Line, {remote, Line, {atom, Line, erlang}, {atom, Line, nif_error}}, [{atom, Line, not_loaded}]},
    [{function, Line, arm, 2, [clause(Line, Wildcards, NotLoaded)]}, {eof, Line}];
variant(Form, _Library) ->
    [Form].

clause(Line, Patterns, Body) ->
    {clause, Line, Patterns, [], [Body]}.

%% Injects the failure after this number of points where it can occur.
-spec arm(failure(), non_neg_integer()) -> ok.
arm(Failure, Points) ->
    _ = canal_lock_nif:arm(native_name(Failure), Points),
    ok.

native_name(one_allocation) -> allocation;
native_name(all_allocations) -> memory;
native_name(Failure) -> Failure.

%% Stops the injection. Returns whether a failure occurred.
-spec disarm() -> boolean().
disarm() ->
    canal_lock_nif:arm(none, 0) > 0.

%% The native functions of the released library.
-spec natives() -> [{atom(), arity()}].
natives() ->
    lists:sort(canal_lock_nif:module_info(exports)) -- [{module_info, 0}, {module_info, 1}, {arm, 2}].
