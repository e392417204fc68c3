%% @private
%% Finds wrong arguments and options, and explains errors (EEP 54): the shell and Elixir call {@link format_error/2}
%% when they show an error. canal_lock_errors.hrl has the macros that raise.
%%
%% The arguments of fast calls are checked here only after the call has failed, so correct calls do not pay for it. An
%% explanation never calls native code.
-module(canal_lock_errors).

-include("canal_lock_errors.hrl").

-export([reason/1, arguments/2, explain/1, wrong/2, format_error/2]).
%% For canal_lock_quorum_errors, and for options of Elixir and of the application.
-export([format_error/3, wrong_arguments/2, wrong_option/2, option_text/2]).
-export([environment/0, start_options/0, view_options/0, wait_options/0, request_options/0, permits_options/0]).
-export([capacity_options/0, many_options/0]).

-export_type([cause/0, option/0, wrong_option/0]).

%% Why a call raises. `{badarg, Texts}' is for checks that other modules make. `foreign_lock' is a quorum lock of
%% another node, `no_voter' a node that is always a client of quorum locks.
-type cause() ::
    badarg | {badarg, texts()} | not_started | foreign_lock | no_voter | too_many_buckets
    | system_limit | not_watched | nif_panicked | version_mismatch.

%% Explanations, by the position of the argument.
-type texts() :: #{pos_integer() | general => binary()}.

%% What a value must be: a kind that `requirement/2' or `wrong_argument/3' knows, or a function that returns a
%% requirement. `Must' completes the sentence "X must ...".
-type kind() ::
    atom()
    | {function, arity()}
    | {options | timeout_or | limit_or | buckets_or | max_per_or, [option()]}
    | fun((term()) -> requirement()).
-type requirement() :: {IsMet :: boolean(), Must :: iodata()}.

-type option() :: {Name :: atom(), kind() | {required, kind()}}.
-type wrong_option() ::
    not_a_map
    | {unknown, Name :: term(), Known :: [atom()]}
    | {missing, Name :: atom(), Must :: iodata()}
    | {wrong, Name :: atom(), Must :: iodata(), Value :: term()}.

%% About this many characters of a wrong value are shown.
-define(MAX_CHARACTERS, 100).

-spec reason(cause()) -> badarg | system_limit | not_watched | nif_panicked | version_mismatch.
reason({badarg, _Texts}) -> badarg;
reason(not_started) -> badarg;
reason(foreign_lock) -> badarg;
reason(no_voter) -> badarg;
reason(too_many_buckets) -> system_limit;
reason(Cause) -> Cause.

%% The arguments that the error shows. A key that is too large may be a small term with shared parts. The VM loses the
%% sharing when it copies the error for links, monitors and the logger, so the error must not contain the key.
-spec arguments(cause(), [term()]) -> [term()] | none.
arguments(system_limit, _Arguments) -> none;
arguments(_Cause, Arguments) -> Arguments.

-spec format_error(term(), erlang:stacktrace()) -> texts().
format_error(_Reason, Stack) ->
    format_error(Stack, fun wrong/2, fun(Cause) -> #{general => explain(Cause)} end).

%% The same for any API: `Wrong' finds its wrong arguments, and `Explain' explains any cause but a wrong argument.
-spec format_error(erlang:stacktrace(), fun((atom(), [term()]) -> texts()), fun((cause()) -> texts())) -> texts().
format_error([{_Module, Function, Arguments, Info} | _], Wrong, Explain) ->
    case proplists:get_value(error_info, Info, #{}) of
        #{cause := badarg} when is_list(Arguments) -> Wrong(Function, Arguments);
        #{cause := {badarg, Texts}} -> Texts;
        #{cause := too_many_buckets} -> #{2 => explain(too_many_buckets)};
        #{cause := Cause} when Cause =/= badarg -> Explain(Cause);
        _ -> #{}
    end.

%% What has happened, and what to do. For every cause except wrong arguments, `foreign_lock' and `no_voter', which
%% canal_lock_quorum_errors explains.
-spec explain(cause()) -> binary().
explain(not_started) ->
    <<"canal_lock is not started on this node: start the application, or call canal_lock:start_link/0">>;
explain(system_limit) ->
    <<"there is not enough memory, or the key is larger than half a gigabyte; nothing has changed: free memory and "
      "repeat the call, or use a smaller key">>;
explain(too_many_buckets) ->
    <<"MaxPer is too small: the key has more than 1,000 buckets; pass a larger MaxPer, or call count/1">>;
explain(not_watched) ->
    <<"the VM did not monitor the calling process; nothing has changed, the call can be repeated">>;
explain(nif_panicked) ->
    <<"bug in the native library of canal_lock; please report it with the panic message on standard error">>;
explain(version_mismatch) ->
    <<"the other node runs another version of canal_lock: run the same version on both nodes">>.

%% The wrong arguments of a call of canal_lock, each with its explanation. Empty if all are right.
-spec wrong(Function :: atom(), Arguments :: [term()]) -> texts().
wrong(Function, Arguments) ->
    wrong_arguments(form(Function, Arguments), Arguments).

%% A map in the place of a number belongs to another form of the call.
form(acquire, [_, _, Options]) when is_map(Options) -> short_form(wait_options());
form(request, [_, _, Options]) when is_map(Options) -> short_form(request_options());
form(with_permit, [_, _, Options, _]) when is_map(Options) -> short_form(wait_options()) ++ [{"Fun", {function, 0}}];
form(Function, Arguments) -> expected(Function, length(Arguments)).

short_form(Options) ->
    [any, {"Limit", count}, {"Options", {options, Options}}].

expected(start_link, 1) -> [{"MaxPer", {max_per_or, start_options()}}];
expected(start_link, 2) -> [{"MaxPer", positive}, {"Options", {options, proplists:delete(max_per, start_options())}}];
expected(child_spec, 1) -> [{"MaxPer", child}];
expected(acquire, 2) -> [any, {"Limit", {limit_or, capacity_options()}}];
expected(acquire, 3) -> [any, {"MaxPer", count}, {"Buckets", {buckets_or, wait_options()}}];
expected(acquire, 4) -> numbers() ++ [{"TimeoutOrOptions", {timeout_or, wait_options()}}];
expected(request, 2) -> [any, {"Limit", {limit_or, proplists:delete(timeout_ms, capacity_options())}}];
expected(request, 3) -> [any, {"MaxPer", count}, {"Buckets", {buckets_or, request_options()}}];
expected(request, 4) -> numbers() ++ [{"Options", {options, request_options()}}];
expected(cancel, 1) -> [{"Ref", reference}];
expected(resize, 2) -> [any, {"Limit", count}];
expected(resize, 3) -> numbers();
expected(release, 2) -> [any, {"Options", {options, permits_options()}}];
expected(release, 3) -> numbers();
expected(acquire_many, 1) -> [{"Limits", limits}];
expected(acquire_many, 2) ->
    [{"Limits", limits}, {"TimeoutOrOptions", {timeout_or, many_options()}}];
expected(with_permits, 2) -> [{"Limits", limits}, {"Fun", {function, 0}}];
expected(with_permits, 3) -> expected(acquire_many, 2) ++ [{"Fun", {function, 0}}];
expected(with_permit, 3) -> expected(acquire, 2) ++ [{"Fun", {function, 0}}];
expected(with_permit, 4) ->
    [any, {"MaxPer", count}, {"Buckets", {buckets_or, wait_options()}}, {"Fun", {function, 0}}];
expected(with_permit, 5) -> expected(acquire, 4) ++ [{"Fun", {function, 0}}];
expected(give, 2) -> [any, {"Pid", local_pid}];
expected(give, 3) -> expected(give, 2) ++ [{"Options", {options, permits_options()}}];
expected(buckets, 2) -> [any, {"MaxPer", positive}];
expected(held, 1) -> [{"Pid", pid}];
expected(holder_info, 1) -> [{"Pid", pid}];
expected(acquire_on, 4) -> [{"Node", node} | numbers()];
expected(acquire_on, 5) -> [{"Node", node} | expected(acquire, 4)];
expected(release_on, 2) -> [{"Node", node}, any];
expected(release_on, 3) -> [{"Node", node} | expected(release, 2)];
expected(release_on_async, Arity) -> expected(release_on, Arity);
expected(with_permit_on, Arity) -> expected(acquire_on, Arity - 1) ++ [{"Fun", {function, 0}}];
expected(top, 1) -> [{"Options", {options, view_options()}}];
expected(_, Arity) -> lists:duplicate(Arity, any).

numbers() ->
    [any, {"MaxPer", count}, {"Buckets", count}].

%% Of the application.
-spec environment() -> [option()].
environment() ->
    [{start, boolean} | start_options()].

-spec start_options() -> [option()].
start_options() ->
    [{max_per, positive}, {keep_on_crash, boolean}, {sweep_interval_ms, positive_ms}, {max_waiting, count}].

%% Of a call that may wait.
-spec wait_options() -> [option()].
wait_options() ->
    [{timeout_ms, timeout} | request_options()].

%% The same, with the capacity as a function.
-spec capacity_options() -> [option()].
capacity_options() ->
    [{capacity, {required, {function, 0}}} | wait_options()].

%% Of a call for several keys.
-spec many_options() -> [option()].
many_options() ->
    proplists:delete(permits, wait_options()).

-spec request_options() -> [option()].
request_options() ->
    [{permits, positive}, {max_waiting, limit}].

%% Of a release or a gift.
-spec permits_options() -> [option()].
permits_options() ->
    [{permits, positive}].

-spec view_options() -> [option()].
view_options() ->
    [{interval_ms, positive_ms}, {rows, positive}, {show, {function, 1}}].

-spec wrong_arguments([any | {Name :: string(), kind()}], Arguments :: [term()]) -> texts().
wrong_arguments(Expected, Arguments) ->
    Numbered = lists:zip3(lists:seq(1, length(Arguments)), Expected, Arguments),
    maps:from_list([{N, Text} || {N, {Name, Kind}, Value} <- Numbered, Text <- wrong_argument(Name, Kind, Value)]).

wrong_argument(_Name, {options, Known}, Options) ->
    [option_text(Wrong, Options) || Wrong <- [wrong_option(Known, Options)], Wrong =/= none];
wrong_argument(Name, {Or, Known}, Options) when is_map(Options), Or =/= options ->
    wrong_argument(Name, {options, Known}, Options);
wrong_argument(_Name, child, {MaxPer, Options}) ->
    lists:sublist(maps:values(wrong(start_link, [MaxPer, Options])), 1);
wrong_argument(Name, child, Options) when is_map(Options) ->
    wrong_argument(Name, {options, start_options()}, Options);
wrong_argument(Name, Kind, Value) ->
    [text(Name, Must, Value) || {false, Must} <- [requirement(Kind, Value)]].

text(Name, Must, Value) ->
    Got = canal_lock_text:short(Value, ?MAX_CHARACTERS),
    unicode:characters_to_binary([Name, " must ", Must, ", got: ", Got]).

%% Whether a value is what it must be.
-spec requirement(kind(), term()) -> requirement().
requirement(positive, N) -> {is_integer(N) andalso N > 0, "be a positive integer"};
requirement(child, N) -> {is_integer(N) andalso N > 0, "be a positive integer, a map of options, or {MaxPer, Options}"};
requirement({max_per_or, _}, N) -> {is_integer(N) andalso N > 0, "be a positive integer or a map of options"};
requirement(count, N) -> {is_integer(N) andalso N >= 0, "be a non-negative integer"};
requirement({limit_or, _}, N) ->
    {is_integer(N) andalso N >= 0, "be a non-negative integer, or a map with the option capacity"};
requirement({buckets_or, _}, N) -> {is_integer(N) andalso N >= 0, "be a non-negative integer, or a map of options"};
requirement(limits, Value) ->
    {canal_lock_many:is_limits(Value), "be a list of {Key, Limit} and {Key, MaxPer, Buckets}, each key once"};
requirement(positive_ms, N) -> {is_ms(N) andalso N > 0, "be a positive integer below 2^32 (milliseconds)"};
requirement(ms, N) -> {is_ms(N), "be a non-negative integer below 2^32 (milliseconds)"};
requirement(timeout, N) ->
    {?IS_TIMEOUT(N), "be a non-negative integer below 2^32 (milliseconds) or infinity"};
requirement({timeout_or, _}, N) ->
    {?IS_TIMEOUT(N), "be a non-negative integer below 2^32 (milliseconds), infinity, or a map of options"};
requirement(limit, N) -> {is_integer(N) andalso N >= 0 orelse N =:= infinity, "be a non-negative integer or infinity"};
requirement(reference, Value) -> {is_reference(Value), "be a reference"};
requirement(local_pid, Value) -> {is_pid(Value) andalso node(Value) =:= node(), "be a pid of this node"};
requirement(boolean, Value) -> {is_boolean(Value), "be true or false"};
requirement(map, Value) -> {is_map(Value), "be a map"};
requirement(pid, Value) -> {is_pid(Value), "be a pid"};
requirement(node, Value) -> {is_atom(Value), "be the name of a node, an atom"};
requirement({function, Arity}, F) -> {is_function(F, Arity), ["be a function of arity ", integer_to_list(Arity)]};
requirement(Kind, Value) when is_function(Kind, 1) -> Kind(Value).

is_ms(N) -> is_integer(N) andalso N >= 0 andalso N =< ?MAX_MS.

%% What is wrong with a map of options, if anything.
-spec wrong_option([option()], Options :: term()) -> none | wrong_option().
wrong_option(Known, Options) when is_map(Options) ->
    Names = [Name || {Name, _} <- Known],
    Unknown = [{unknown, Name, Names} || Name <- lists:sort(maps:keys(Options) -- Names)],
    hd(Unknown ++ lists:flatmap(fun(Option) -> wrong_value(Option, Options) end, Known) ++ [none]);
wrong_option(_Known, _Options) ->
    not_a_map.

wrong_value({Name, {required, Kind}}, Options) when is_map_key(Name, Options) ->
    wrong_value({Name, Kind}, Options);
wrong_value({Name, {required, Kind}}, _Options) ->
    {_, Must} = requirement(Kind, missing),
    [{missing, Name, Must}];
wrong_value({Name, Kind}, Options) ->
    [{wrong, Name, Must, Value} || #{Name := Value} <- [Options], {false, Must} <- [requirement(Kind, Value)]].

-spec option_text(wrong_option(), Options :: term()) -> binary().
option_text(not_a_map, Options) ->
    text("Options", "be a map", Options);
option_text({unknown, Name, Known}, _Options) ->
    Names = lists:join(", ", [atom_to_list(Option) || Option <- Known]),
    Text = ["unknown option ", canal_lock_text:short(Name, ?MAX_CHARACTERS), "; the options are ", Names],
    unicode:characters_to_binary(Text);
option_text({missing, Name, Must}, _Options) ->
    unicode:characters_to_binary(["the option ", atom_to_list(Name), " is missing; it must ", Must]);
option_text({wrong, Name, Must, Value}, _Options) ->
    text(["the option ", atom_to_list(Name)], Must, Value).
