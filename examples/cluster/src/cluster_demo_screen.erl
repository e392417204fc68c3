%% Prints events as they arrive, one line each, as plain text. Of the extras it prints only failures.
-module(cluster_demo_screen).

-export([show/2, say/1]).

-spec show(cluster_demo_recorder:event(), Zero_ns :: integer()) -> ok.
show({At_ns, Client, Type}, Zero_ns) ->
    case is_shown(Client, Type) of
        true -> say(io_lib:format("~7.3f  ~-3ts ~ts", [(At_ns - Zero_ns) / 1.0e9, name(Client), text(Type)]));
        false -> ok
    end.

-spec say(iodata()) -> ok.
say(Text) ->
    io:format("~ts~n", [string:trim(Text, trailing)]).

name(demo) -> "";
name({Node, _, _}) -> atom_to_list(Node).

is_shown(_, {held, _, _, _}) -> false;
is_shown(_, rests) -> false;
is_shown({_, _, actor}, {{write, _, _, _}, _, {ok, _}, _}) -> true;
is_shown(_, {_, _, {ok, _}, _}) -> false;
is_shown(_, {unlocked, _, ok}) -> false;
is_shown({_, _, extra}, {granted, _}) -> false;
is_shown({_, _, extra}, {unlocks, _}) -> false;
is_shown({_, _, extra}, {refused, _, _}) -> false;
is_shown(_, _) -> true.

text({said, Text}) -> Text;
text({killed, Node, _}) -> io_lib:format("*** ~ts is killed (kill -9)", [Node]);
text({refused, Names, Reason}) -> [columns(names(Names), ""), io_lib:format("refused: ~ts", [Reason])];
text({{look, _, _}, Lock, Answer, _}) -> [columns(Lock), answer("looks at", Answer)];
text({{read, _, _}, Lock, Answer, _}) -> [columns(Lock), answer("reads", Answer)];
text({{write, _, _, _}, Lock, Answer, _}) -> [columns(Lock), answer("writes", Answer)];
text({unlocked, Lock, {error, not_held}}) -> [columns(Lock), "unlock refused: not held"];
text({unlocked, Lock, {error, timeout}}) -> [columns(Lock), "unlocked, but no quorum has answered"];
text({Type, Lock}) -> [columns(Lock), text_of(Type)].

text_of(granted) -> "granted";
text_of(at_risk) -> "AT RISK: voters do not answer";
text_of(lost) -> "LOST";
text_of(unlocks) -> "unlocks";
text_of(abandons) -> "finds the lock lost, and does not write";
text_of(delays) -> "has checked that it holds the lock; writes later without another check";
text_of(keeps) -> "keeps the lock".

answer(Verb, {ok, Value}) -> io_lib:format("~ts ~b", [Verb, Value]);
answer(Verb, {refused, Highest}) -> io_lib:format("~ts: REFUSED, the register has seen fence ~b", [Verb, Highest]).

columns({_, Mode, Names, Fence}) ->
    columns(["read " || Mode =:= read] ++ [names(Names)], io_lib:format("fence ~b", [Fence])).

columns(Names, Fence) ->
    io_lib:format("~-18ts ~-25ts", [Names, Fence]).

names(Names) ->
    lists:join(", ", [name_of(Name) || Name <- Names]).

name_of({shelf, Number}) -> io_lib:format("shelf ~b", [Number]);
name_of(Name) -> atom_to_list(Name).
