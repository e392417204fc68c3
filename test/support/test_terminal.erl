%% A group leader for a process that prints pictures and reads lines. The test receives each output, and the process
%% waits until the test lets it continue. So a test can act between two pictures.
-module(test_terminal).

-export([tests/1, quick/0, slow/0, sections/1, cells/1, words/1, shown/3]).
-export([start/2, picture/1, next/1, raw/1, input/2, is_asked/1, resize/2, go/1, quit/1, await_result/1]).

-export_type([terminal/0, settings/0]).

%% A process that prints to this terminal, its monitor, and its group leader.
-type terminal() :: {Runner :: pid(), Monitor :: reference(), Leader :: pid()}.

%% `none': the terminal does not report its size. `input': the answer to each request for a line. Without it the test
%% answers with `input/2'.
-type settings() :: #{
    columns => pos_integer() | none,
    rows => pos_integer() | none,
    encoding => unicode | latin1,
    input => term()
}.

-define(DEFAULTS, #{columns => none, rows => none, encoding => unicode}).
-define(DEADLINE_MS, 120_000).

%% Sets TERM, so the tests do not depend on the terminal that runs them.
-spec tests(term()) -> term().
tests(Tests) ->
    Before = os:getenv("TERM"),
    {setup, fun() -> os:putenv("TERM", "xterm") end, fun(_) -> reset("TERM", Before) end, Tests}.

reset(Name, false) -> os:unsetenv(Name);
reset(Name, Value) -> os:putenv(Name, Value).

%% Options of `top/1': the next picture comes as soon as the test allows it.
-spec quick() -> #{interval_ms := pos_integer()}.
quick() -> #{interval_ms => 1}.

%% The second picture does not come within a test.
-spec slow() -> #{interval_ms := pos_integer()}.
slow() -> #{interval_ms => 16#ffffffff}.

%% The parts of a picture that an empty line separates.
-spec sections([string()]) -> [[string()]].
sections(Lines) ->
    case lists:splitwith(fun(Line) -> Line =/= "" end, Lines) of
        {Section, [_ | Rest]} -> [Section | sections(Rest)];
        {Section, []} -> [Section]
    end.

%% The numbers, or their headings, of a line.
-spec cells(string()) -> [string()].
cells([]) -> [];
cells(Line) -> [string:trim(string:slice(Line, 0, 13)) | cells(string:slice(Line, 13))].

%% The words of a row that begins with a number, or with a number and a duration. On a slow machine the duration is
%% shown in seconds, rounded to one decimal; here it is in milliseconds, rounded down.
-spec words(string()) -> [string()].
words(Row) ->
    case string:lexemes(Row, " ") of
        [Number, Seconds, "s" | Rest] ->
            [Number, integer_to_list(round(1000 * list_to_float(Seconds)) - 50), "ms" | Rest];
        Words ->
            Words
    end.

%% What a callback module of canal_lock_screen shows of a reading: the first lines, and the lines of each list.
-spec shown(module(), canal_lock_screen:last(), Data :: term()) -> [[string()]].
shown(Module, Last, Data) ->
    Show = fun(Term) -> io_lib:format("~0tp", [Term]) end,
    sections([lists:flatten(Line) || Line <- canal_lock_screen:lines(Module, Last, Data, Show, 1 bsl 60, 1 bsl 60)]).

%% Calls the function in a new process with this group leader.
-spec start(fun(() -> term()), settings()) -> terminal().
start(Fun, Settings) ->
    Test = self(),
    Leader = spawn(fun() ->
        serve(#{test => Test, monitor => monitor(process, Test), settings => maps:merge(?DEFAULTS, Settings)})
    end),
    {Runner, Monitor} = spawn_monitor(fun() ->
        group_leader(Leader, self()),
        Answer = Fun(),
        %% The test checks that the function leaves nothing in its process.
        Left = process_info(self(), [messages, monitors, links]),
        exit({answered, Answer, Left})
    end),
    {Runner, Monitor, Leader}.

%% Returns the lines of the next picture. The process then waits.
-spec picture(terminal()) -> [string()].
picture(Terminal) ->
    string:split(lists:flatten(without_moves(raw(Terminal))), "\n", all).

without_moves(Text) ->
    lists:foldl(fun(Move, Rest) -> string:replace(Rest, Move, "", all) end, Text, ["\e[H", "\e[K", "\e[J"]).

%% The next output, with its escape sequences.
-spec raw(terminal()) -> string().
raw({Runner, Monitor, Leader}) ->
    receive
        {Leader, written, Text} -> Text;
        {'DOWN', Monitor, process, Runner, Reason} -> error({no_picture, Reason})
    after ?DEADLINE_MS -> error(no_picture)
    end.

%% Lets the process continue.
-spec go(terminal()) -> ok.
go({_, _, Leader}) ->
    Leader ! go,
    ok.

%% Lets it continue until the next picture.
-spec next(terminal()) -> [string()].
next(Terminal) ->
    go(Terminal),
    picture(Terminal).

%% The answer to the present or next request for a line.
-spec input(terminal(), term()) -> ok.
input({_, _, Leader}, Line) ->
    Leader ! {input, Line},
    ok.

-spec is_asked(terminal()) -> boolean().
is_asked({_, _, Leader}) ->
    Ref = make_ref(),
    Leader ! {is_asked, self(), Ref},
    test_await:answer(Ref).

-spec resize(terminal(), settings()) -> ok.
resize({_, _, Leader}, Settings) ->
    Leader ! {resize, Settings},
    ok.

%% The answer of the function if it left nothing in its process and printed nothing more. Otherwise the details.
-spec await_result(terminal()) -> term().
await_result({Runner, Monitor, Leader}) ->
    Reason = test_await:reason({Runner, Monitor}),
    Written =
        receive
            {Leader, written, Text} -> [Text]
        after 0 -> []
        end,
    exit(Leader, kill),
    case {Reason, Written} of
        {{answered, Answer, [{messages, []}, {monitors, []}, {links, []}]}, []} -> Answer;
        Other -> Other
    end.

%% Sends an empty line, so that the process quits. Lets all pictures that it still prints pass.
-spec quit(terminal()) -> ok.
quit(Terminal) ->
    input(Terminal, "\n"),
    go(Terminal),
    pass_pictures(Terminal).

pass_pictures(Terminal = {Runner, Monitor, Leader}) ->
    receive
        {Leader, written, _} ->
            go(Terminal),
            pass_pictures(Terminal);
        {'DOWN', Monitor, process, Runner, Reason} ->
            self() ! {'DOWN', Monitor, process, Runner, Reason},
            ok = await_result(Terminal)
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
