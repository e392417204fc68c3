%% A group leader for a process that prints pictures and reads lines. The test receives each output, and the process
%% waits until the test lets it continue. So a test decides what happens between two pictures.
-module(test_terminal).

-export([start/2, picture/1, next/1, raw/1, input/2, is_asked/1, resize/2, go/1, quits/1, ended/1]).

-export_type([screen/0, settings/0]).

%% The process that runs on it, its monitor, and the group leader.
-type screen() :: {Runner :: pid(), Monitor :: reference(), Screen :: pid()}.

%% `none': the terminal does not report its size. `input': the answer to each request for a line. Without it the test
%% answers with `input/2'.
-type settings() :: #{
    columns => pos_integer() | none,
    rows => pos_integer() | none,
    encoding => unicode | latin1,
    input => term()
}.

-define(DEFAULTS, #{columns => none, rows => none, encoding => unicode}).
-define(DEADLINE_MS, 20_000).

%% Calls the function in a new process with this group leader.
-spec start(fun(() -> term()), settings()) -> screen().
start(Fun, Settings) ->
    Test = self(),
    Screen = spawn(fun() ->
        serve(#{test => Test, monitor => monitor(process, Test), settings => maps:merge(?DEFAULTS, Settings)})
    end),
    {Runner, Monitor} = spawn_monitor(fun() ->
        group_leader(Screen, self()),
        Answer = Fun(),
        %% The test checks that the function leaves nothing in its process.
        Left = process_info(self(), [messages, monitors, links]),
        exit({answered, Answer, Left})
    end),
    {Runner, Monitor, Screen}.

%% The lines of the next picture. Its process waits from then on.
-spec picture(screen()) -> [string()].
picture(Screen) ->
    string:split(lists:flatten(without_moves(raw(Screen))), "\n", all).

without_moves(Text) ->
    lists:foldl(fun(Move, Rest) -> string:replace(Rest, Move, "", all) end, Text, ["\e[H", "\e[K", "\e[J"]).

%% The next output, with its escape sequences.
-spec raw(screen()) -> string().
raw({Runner, Monitor, Screen}) ->
    receive
        {Screen, written, Text} -> Text;
        {'DOWN', Monitor, process, Runner, Reason} -> error({no_picture, Reason})
    after ?DEADLINE_MS -> error(no_picture)
    end.

%% Lets the process continue.
-spec go(screen()) -> ok.
go({_, _, Screen}) ->
    Screen ! go,
    ok.

%% Lets it continue until the next picture.
-spec next(screen()) -> [string()].
next(Screen) ->
    go(Screen),
    picture(Screen).

%% The answer to the present or next request for a line.
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

%% The answer of the function if it left nothing in its process and printed nothing more. Otherwise the details.
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

%% Ends the process with a line. A picture waits, or will wait.
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
