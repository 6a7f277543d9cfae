package run

import "github.com/nhc-gpu/nhc-gpu/checks"

// ShellHandler hears what happens in the shell while a line runs. All methods
// are called from the goroutine that called into the [Shell].
type ShellHandler interface {
	// Output is what the shell or its children wrote; fd is 1 or 2.
	Output(fd int, data []byte)
	// Die is called when a check died; heard says that its log line was written
	// where the log is. It says whether the shell is to run the site's own
	// OFFLINE_NODE now, after giving text to syslog; Died is called when that is over.
	Die(status, message string, subshell, heard bool) (helper bool, text string)
	Died()
	// Leaving is called when a line ends the shell itself with that status, unless
	// it replaces the shell or a signal ends it. Like Die; message is for OFFLINE_NODE.
	Leaving(status int) (helper bool, text, message string)
	// Syslog queues a line; Flush sends what is queued.
	Syslog(text string)
	Flush()
	// Settings brings the values of SettingNames after a line.
	Settings(values map[string]string)
	// Environ brings all that is exported, after a line that has changed it.
	Environ(values map[string]string)
	// Functions brings the names of checks that scripts of the site have
	// defined, after [Shell.Load].
	Functions(names []string)
	// Variables brings every variable after [Shell.Source] and [Shell.Load];
	// Array one array.
	Variables(vars []ShellVar)
	Array(name string, values []string)
	// Forked tells the process of a line that runs in the background (-f).
	Forked(pid int)
	// Call runs a check that a line calls as a function; line is the whole line.
	Call(dir, line string, words []string) NativeReply
	// Match judges a node range for mcheck.
	Match(s, expr string) NativeReply
}

// ShellVar is a variable of the shell.
type ShellVar struct {
	Name, Value string
	Export      bool
}

// NativeReply is what a check came to that a shell line called: a failure dies,
// Warn and Unknown are logged, what is less is dropped.
type NativeReply struct {
	Findings []checks.Finding
}

// SettingNames are the variables that steer NHC itself and that a check line may
// change. Those that steer a check are in its Info.Vars.
var SettingNames = []string{
	"NAME", "SILENT", "VERBOSE", "DEBUG", "TS", "TIMEOUT", "MARK_OFFLINE", "NHC_RM", "OFFLINE_NODE", "ONLINE_NODE",
	"NHC_CHECK_ALL", "NHC_CHECK_FORKED", "HOSTNAME", "IGNORE_EMPTY_NOTE", "MAX_SYS_UID", "LOGFILE", "RESULTFILE", "PASSWD_DATA_SRC",
	"SHELL", "SLURM_SINFO", "SLURM_SINFO_ARGS", "SLURM_RECHECK", "SLURM_SCONTROL", "SLURM_SC_OFFLINE_ARGS", "SLURM_SC_ONLINE_ARGS",
}
