package run

import "github.com/nhc-gpu/nhc-gpu/checks"

// ShellHandler receives the events of the shell while a line runs. The goroutine that called into
// the [Shell] calls all methods.
type ShellHandler interface {
	// Output receives the output of the shell or its children; fd is 1 or 2.
	Output(fd int, data []byte)
	// Die is called when a check died. heard is true if the check wrote its log line to the log
	// itself. Die returns whether the shell must now run the site's own OFFLINE_NODE, after it
	// sends text to syslog. Died is called when that is over.
	Die(status, message string, subshell, heard bool) (helper bool, text string)
	Died()
	// Leaving is called when a line ends the shell itself with that status, unless it replaces the
	// shell or a signal ends it. It returns the same as Die; message is for OFFLINE_NODE.
	Leaving(status int) (helper bool, text, message string)
	// Syslog queues a line; Flush sends the queue.
	Syslog(text string)
	Flush()
	// Settings receives the values of SettingNames after a line.
	Settings(values map[string]string)
	// Environ receives all exported variables after a line that changed them.
	Environ(values map[string]string)
	// Functions receives the names of checks that scripts of the site have defined, after
	// [Shell.Load].
	Functions(names []string)
	// Variables receives every variable after [Shell.Source] and [Shell.Load]; Array receives one
	// array.
	Variables(vars []ShellVar)
	Array(name string, values []string)
	// Forked receives the PID of a line that runs in the background (-f).
	Forked(pid int)
	// Call runs a check that a line calls as a function; line is the whole line.
	Call(dir, line string, words []string) NativeReply
	// Match evaluates a node range for mcheck.
	Match(s, expr string) NativeReply
}

// ShellVar is a variable of the shell.
type ShellVar struct {
	Name, Value string
	Export      bool
}

// NativeReply is the result of a check that a shell line called. A failure dies, Warn and Unknown
// are logged, and lower severities are dropped.
type NativeReply struct {
	Findings []checks.Finding
}

// SettingNames are the variables of NHC itself that a check line may change. The variables of a
// check are in its Info.Vars.
var SettingNames = []string{
	"NAME", "SILENT", "VERBOSE", "DEBUG", "TS", "TIMEOUT", "MARK_OFFLINE", "MODE", "CONFIG_ERRORS", "NHC_RM", "OFFLINE_NODE", "ONLINE_NODE",
	"NHC_CHECK_ALL", "NHC_CHECK_FORKED", "HOSTNAME", "IGNORE_EMPTY_NOTE", "MAX_SYS_UID", "LOGFILE", "RESULTFILE", "PASSWD_DATA_SRC",
	"SHELL", "SLURM_SINFO", "SLURM_SINFO_ARGS", "SLURM_RECHECK", "SLURM_SCONTROL", "SLURM_SC_OFFLINE_ARGS", "SLURM_SC_ONLINE_ARGS",
}
