%% A group leader for one process that shows and reads: what is written on it is handed to the test piece by piece, and
%% the writer waits until the test lets it go on. So a test decides what happens between two pictures, and nothing has
%% to be waited for.
-module(test_terminal).

-export([start/2, picture/1, next/1, raw/1, input/2, is_asked/1, resize/2, go/1, quits/1, ended/1]).

-export_type([screen/0, settings/0]).

%% Who runs on it, and what it is.
-type screen() :: {Runner :: pid(), Monitor :: reference(), Screen :: pid()}.

%% `none': it does not say. `input' is answered whenever a line is asked for; without it, the test answers.
-type settings() :: #{
    columns => pos_integer() | none,
    rows => pos_integer() | none,
    encoding => unicode | latin1,
    input => term()
}.

-define(DEFAULTS, #{columns => none, rows => none, encoding => unicode}).
-define(DEADLINE_MS, 20_000).

%% Runs it in a process of its own, whose group leader this is.
-spec start(fun(() -> term()), settings()) -> screen().
start(Fun, Settings) ->
    Test = self(),
    Screen = spawn(fun() ->
        serve(#{test => Test, monitor => monitor(process, Test), settings => maps:merge(?DEFAULTS, Settings)})
    end),
    {Runner, Monitor} = spawn_monitor(fun() ->
        group_leader(Screen, self()),
        Answer = Fun(),
        %% What is left behind is left in the process that called.
        Left = process_info(self(), [messages, monitors, links]),
        exit({answered, Answer, Left})
    end),
    {Runner, Monitor, Screen}.

%% The lines of the next picture, whose writer waits then.
-spec picture(screen()) -> [string()].
picture(Screen) ->
    string:split(lists:flatten(without_moves(raw(Screen))), "\n", all).

without_moves(Text) ->
    lists:foldl(fun(Move, Rest) -> string:replace(Rest, Move, "", all) end, Text, ["\e[H", "\e[K", "\e[J"]).

%% As it was written.
-spec raw(screen()) -> string().
raw({Runner, Monitor, Screen}) ->
    receive
        {Screen, written, Text} -> Text;
        {'DOWN', Monitor, process, Runner, Reason} -> error({no_picture, Reason})
    after ?DEADLINE_MS -> error(no_picture)
    end.

%% Lets the writer go on.
-spec go(screen()) -> ok.
go({_, _, Screen}) ->
    Screen ! go,
    ok.

%% Lets it go on to the next picture.
-spec next(screen()) -> [string()].
next(Screen) ->
    go(Screen),
    picture(Screen).

%% To whoever asks for a line, or has asked.
-spec input(screen(), term()) -> ok.
input({_, _, Screen}, Line) ->
    Screen ! {input, Line},
    ok.

-spec is_asked(screen()) -> boolean().
is_asked({_, _, Screen}) ->
    Ref = make_ref(),
    Screen ! {is_asked, self(), Ref},
    test_await:answer(Ref).

-spec resize(screen(), settings()) -> ok.
resize({_, _, Screen}, Settings) ->
    Screen ! {resize, Settings},
    ok.

%% What was answered, or why it ended otherwise. Nothing may be left, and nothing have been written since.
-spec ended(screen()) -> term().
ended({Runner, Monitor, Screen}) ->
    Reason = test_await:reason({Runner, Monitor}),
    Written =
        receive
            {Screen, written, Text} -> [Text]
        after 0 -> []
        end,
    exit(Screen, kill),
    case {Reason, Written} of
        {{answered, Answer, [{messages, []}, {monitors, []}, {links, []}]}, []} -> Answer;
        Other -> Other
    end.

%% By a line. A picture is waiting, or will be.
-spec quits(screen()) -> ok.
quits(Screen) ->
    input(Screen, "\n"),
    go(Screen),
    ends(Screen).

ends(Screen = {Runner, Monitor, Leader}) ->
    receive
        {Leader, written, _} ->
            go(Screen),
            ends(Screen);
        {'DOWN', Monitor, process, Runner, Reason} ->
            self() ! {'DOWN', Monitor, process, Runner, Reason},
            ok = ended(Screen)
    end.

serve(State = #{test := Test, monitor := Monitor, settings := Settings}) ->
    receive
        {io_request, From, As, {put_chars, unicode, Text}} ->
            Test ! {self(), written, unicode:characters_to_list(Text)},
            serve(State#{writer => {From, As}});
        {io_request, From, As, {get_line, unicode, ""}} ->
            case Settings of
                #{input := Line} ->
                    From ! {io_reply, As, Line},
                    serve(State);
                #{} ->
                    serve(State#{reader => {From, As}})
            end;
        {io_request, From, As, {get_geometry, What}} ->
            From ! {io_reply, As, measured(maps:get(What, Settings))},
            serve(State);
        {io_request, From, As, getopts} ->
            From ! {io_reply, As, [{encoding, maps:get(encoding, Settings)}]},
            serve(State);
        go ->
            #{writer := {From, As}} = State,
            From ! {io_reply, As, ok},
            serve(maps:remove(writer, State));
        {input, Line} ->
            case State of
                #{reader := {From, As}} ->
                    From ! {io_reply, As, Line},
                    serve(maps:remove(reader, State));
                #{} ->
                    serve(State#{settings := Settings#{input => Line}})
            end;
        {is_asked, From, Ref} ->
            From ! {Ref, maps:is_key(reader, State)},
            serve(State);
        {resize, New} ->
            serve(State#{settings := maps:merge(Settings, New)});
        {'DOWN', Monitor, process, _, _} ->
            ok
    end.

measured(none) -> {error, enotsup};
measured(Size) -> Size.
