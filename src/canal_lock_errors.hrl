%% How the public functions of canal_lock and canal_lock_quorum raise.
%%
%% There is one protocol: an internal function whose caller must raise answers `{raise, Cause}', with a cause of
%% canal_lock_errors:cause(). These are macros because `error/3' puts the function that calls it on top of the stack
%% trace. A module that includes this file defines ?ERRORS: its module of explanations, with `wrong/2' and
%% `format_error/2'.

%% The largest timeout of all supported OTP releases.
-define(MAX_MS, 16#ffffffff).

%% What a native call or the manager of another node may raise or answer.
-define(IS_CAUSE(Reason),
    (Reason =:= badarg orelse Reason =:= not_started orelse Reason =:= system_limit orelse Reason =:= not_watched orelse
        Reason =:= nif_panicked orelse Reason =:= version_mismatch)
).

%% Raises, with what the shell needs to explain the error (EEP 54).
-define(RAISE(Cause, Arguments),
    error(
        canal_lock_errors:reason(Cause),
        canal_lock_errors:arguments(Cause, Arguments),
        [{error_info, #{module => ?ERRORS, cause => Cause}}]
    )
).

%% Raises if an argument is wrong. Otherwise makes the call.
-define(CHECKED(Arguments, Call),
    case ?ERRORS:wrong(?FUNCTION_NAME, Arguments) of
        Wrong when map_size(Wrong) =:= 0 -> Call;
        _ -> ?RAISE(badarg, Arguments)
    end
).

%% The answer of an internal call. Raises if it is `{raise, Cause}'.
-define(ANSWER(Arguments, Call),
    case Call of
        {raise, Cause} -> ?RAISE(Cause, Arguments);
        Answered -> Answered
    end
).

%% The same as ?ANSWER for a call of a process by canal_lock_exit:call/3: exits name the public function, as those of
%% `gen_server:call/2' name `gen_server'.
-define(ANSWER_OR_EXIT(Arguments, Call),
    try
        ?ANSWER(Arguments, Call)
    catch
        exit:Exit -> exit({Exit, {?MODULE, ?FUNCTION_NAME, Arguments}})
    end
).

%% Turns the causes that a native call raises into `{raise, Cause}'. Other errors pass.
-define(CAUGHT(Call),
    try
        Call
    catch
        error:Caught when ?IS_CAUSE(Caught) -> {raise, Caught}
    end
).
