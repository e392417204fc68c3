%% Shows what happens when it does: a line for each event, as plain text. What the extras do is counted by the
%% verdict; of them only trouble is shown.
-module(cluster_demo_screen).

-export([show/2, say/1]).

-spec show(cluster_demo_book:event(), Zero_ns :: integer()) -> ok.
show({At_ns, Who, What}, Zero_ns) ->
    case is_shown(Who, What) of
        true -> say(io_lib:format("~7.3f  ~-3ts ~ts", [(At_ns - Zero_ns) / 1.0e9, name(Who), text(What)]));
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
is_shown(_, {given, _, ok}) -> false;
is_shown({_, _, extra}, {granted, _}) -> false;
is_shown({_, _, extra}, {gives_back, _}) -> false;
is_shown({_, _, extra}, {refused, _, _}) -> false;
is_shown(_, _) -> true.

text({said, Text}) -> Text;
text({killed, Node, _}) -> io_lib:format("*** ~ts is killed (kill -9)", [Node]);
text({refused, Names, Why}) -> [column(names(Names), ""), io_lib:format("refused: ~ts", [Why])];
text({{look, _, _}, Lock, Answer, _}) -> [column(Lock), answer("looks at", Answer)];
text({{read, _, _}, Lock, Answer, _}) -> [column(Lock), answer("reads", Answer)];
text({{write, _, _, _}, Lock, Answer, _}) -> [column(Lock), answer("writes", Answer)];
text({given, Lock, Answer}) -> [column(Lock), given(Answer)];
text({What, Lock}) -> [column(Lock), text_of(What)].

text_of(granted) -> "granted";
text_of(at_risk) -> "AT RISK: voters do not answer";
text_of(lost) -> "LOST";
text_of(gives_back) -> "gives it back";
text_of(gives_up) -> "finds it lost, and writes nothing";
text_of(dawdles) -> "has looked: it is held; will write soon, without another look";
text_of(keeps) -> "keeps it".

given({error, not_held}) -> "did not hold it";
given({error, timeout}) -> "has given it back, and no quorum has answered".

answer(Does, {ok, Value}) -> io_lib:format("~ts ~b", [Does, Value]);
answer(Does, {refused, Highest}) -> io_lib:format("~ts: REFUSED by the register, which has seen ~b", [Does, Highest]).

column({_, Mode, Names, Fence}) ->
    column(["read " || Mode =:= read] ++ [names(Names)], io_lib:format("fence ~b", [Fence])).

column(Names, Fence) ->
    io_lib:format("~-18ts ~-24ts", [Names, Fence]).

names(Names) ->
    lists:join(", ", [name_of(Name) || Name <- Names]).

name_of({shelf, Number}) -> io_lib:format("shelf ~b", [Number]);
name_of(Name) -> atom_to_list(Name).
