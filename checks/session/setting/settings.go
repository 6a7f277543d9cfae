// Package setting has the settings of a run: the variables of its shell, from the environment, the
// command line and the files of the site.
package setting

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Settings are the shell variables of a run: what bash would see, were there one.
type Settings struct {
	Vars         map[string]string
	Export       map[string]bool
	Arrays       map[string][]string
	helpers      bool               // the site names the helpers, or the directory they are in
	Profiles     []byte             // the site's profiles of platforms
	ProfilesFrom string             // the file they were read from
	WantedGPUs   int                // see checks.Env.WantedGPUs
	Slurm        *jobscan.SlurmGPUs // what Slurm's configuration says of this node; nil: nobody has asked, or it does not tell
	Past, Spare  string             // where checks keep what they need to know of earlier runs; "": nowhere
	Job          *checks.Job        // of a prolog or an epilog
	Periodic     bool               // slurmd has started the run, as its health check
	Learn        bool               // active tests are run to learn what the node reaches
	Hold         bool               // no check carries out an action
	likeLBNL     bool               // the program is called as LBNL NHC
}

// NoAction is the value of SHELL with which LBNL NHC's checks carry out no action.
const NoAction = ":"

// WrongChoices returns the errors of settings that have one value of few.
func (s *Settings) WrongChoices() (err error) {
	for _, name := range conf.Chosen {
		err = errors.Join(err, conf.WrongChoice(name, s.Get(name)))
	}
	return err
}

// Choose takes over what nhc.toml sets. A setting of the command line or of the sysconfig file
// overrides it.
func (s *Settings) Choose(c *conf.Config) {
	if c == nil {
		return
	}
	for name, value := range c.Chosen {
		if s.Get(name) == "" {
			s.Put(name, value, true)
		}
	}
}

// Observes reports whether the run makes its decisions and carries out none.
func (s *Settings) Observes() bool { return s.Get(conf.SettingMode) == conf.Observe }

// ConfigErrorsDrain reports whether an error in the configuration fails the check, as in LBNL
// NHC.
func (s *Settings) ConfigErrorsDrain() bool {
	v := s.Get(conf.SettingConfigErrors)
	return v == conf.DrainConfigErrors || v == "" && s.likeLBNL
}

// FixedPath is the PATH of everything that is started.
const FixedPath = "/sbin:/usr/sbin:/bin:/usr/bin"

// OwnVars are the settings that the environment must not bring in: they are
// unset at the start, as in LBNL NHC.
var OwnVars = []string{
	"CONFDIR", "CONFFILE", "INCDIR", "HELPERDIR", "ONLINE_NODE", "OFFLINE_NODE", "LOGFILE", "DEBUG", "SILENT", "VERBOSE",
	"TIMEOUT", "RESULTFILE", "MAX_SYS_UID", "NHC_RM", "NHC_CHECK_ALL", "NHC_CHECK_FORKED", "EVAL_LINE",
	conf.SettingMode, conf.SettingConfigErrors,
	"HOSTROOT", "PLATFORM_PROFILES", "TOMLFILE", // ours: what is looked at, what is expected
	probe.SettingNVML, probe.SettingCUDA, probe.SettingNCCL, probe.SettingCUBLASLt, probe.SettingDCGM, probe.SettingLibraryDirs, // what is loaded into a process of root's
}

// hostile are variables that change what programs started by root load or run,
// and those by which bash gives up on a function or on a read.
func hostile(name string) bool {
	switch name {
	case "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "GLOBIGNORE", "CDPATH", "IFS", "FUNCNEST", "TMOUT", "GODEBUG", "GOTRACEBACK", "GOGC", "GOMEMLIMIT":
		return true
	}
	return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_") || strings.HasPrefix(name, "NHC_GPU_")
}

// steers says whether a variable of Slurm's name is one of LBNL NHC's, which says
// what is run.
func steers(name string) bool {
	return name == "SLURM_SCONTROL" || name == "SLURM_RECHECK" || strings.HasPrefix(name, "SLURM_SC_") || strings.HasPrefix(name, "SLURM_SINFO")
}

// New starts from the environment. Around a job only what Slurm itself
// sets is taken: the rest may be the job's.
func New(environ []string, aroundJob bool) *Settings {
	s := &Settings{Vars: map[string]string{}, Export: map[string]bool{}, Arrays: map[string][]string{}}
	for _, e := range environ {
		name, value, ok := strings.Cut(e, "=")
		switch {
		case !ok || hostile(name) || slices.Contains(OwnVars, name):
		case aroundJob && (!strings.HasPrefix(name, "SLURM") && name != "CUDA_VISIBLE_DEVICES" || steers(name)):
		default:
			s.Vars[name], s.Export[name] = value, true
		}
	}
	s.Vars["PATH"], s.Export["PATH"] = FixedPath, true
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	short, _, _ := strings.Cut(host, ".")
	s.Vars["HOSTNAME"], s.Vars["HOSTNAME_S"] = host, short
	s.Distribution(false)
	for _, n := range []string{"HOSTNAME", "HOSTNAME_S", "SYSCONFIGDIR", "LIBEXECDIR"} {
		s.Export[n] = true
	}
	if dir, err := unix.Getwd(); err == nil { //nolint:forbidigo // getcwd(2) asks no file system; os.Getwd would
		s.Vars["PWD"] = dir
	}
	s.Put("RET", "0", true)
	s.Put("FAIL_CNT", "0", true)
	s.Put("FORCE_SETSID", "1", true)
	return s
}

// Distribution sets the directories in which distributions differ.
func (s *Settings) Distribution(debian bool) {
	s.Vars["SYSCONFIGDIR"], s.Vars["LIBEXECDIR"] = "/etc/sysconfig", "/usr/libexec"
	if debian {
		s.Vars["SYSCONFIGDIR"], s.Vars["LIBEXECDIR"] = "/etc/default", "/usr/lib"
	}
}

// Get returns the value of a variable, "" for none.
func (s *Settings) Get(name string) string { return s.Vars[name] }

// Lookup returns the value of a variable, and whether it is set.
func (s *Settings) Lookup(name string) (string, bool) {
	v, ok := s.Vars[name]
	return v, ok
}

// Put sets a variable.
func (s *Settings) Put(name, value string, export bool) {
	s.Vars[name] = value
	if export {
		s.Export[name] = true
	}
	switch name {
	case "HELPERDIR", "OFFLINE_NODE", "ONLINE_NODE":
		s.helpers = s.helpers || value != ""
	}
}

// Word carries out one VAR=value word of the command line.
func (s *Settings) Word(w string) error {
	name, value, array, isArray, export, err := conf.ParseAssign(w, s.Get)
	if err != nil {
		return err
	}
	if isArray {
		s.Arrays[name] = array
		delete(s.Vars, name)
		return nil
	}
	s.Put(name, value, export)
	return nil
}

// Assign carries out what a sysconfig file says.
func (s *Settings) Assign(list []conf.Assign) {
	for _, a := range list {
		switch {
		case a.Unset:
			delete(s.Vars, a.Name)
			delete(s.Arrays, a.Name)
			delete(s.Export, a.Name)
		case a.IsArray:
			s.Arrays[a.Name] = a.Array
		default:
			s.Put(a.Name, a.Value, a.Export)
		}
	}
}

// Preset fills in what the sysconfig file may refer to or replace.
func (s *Settings) Preset(argv0 string) {
	const lbnl = "nhc"
	s.likeLBNL = s.Get("NAME") == lbnl || filepath.Base(argv0) == lbnl
	if s.Get("NAME") == "" {
		name := filepath.Base(argv0)
		if strings.HasPrefix(name, "nhc-gpu") { // nhc-gpu.new, too
			name = lbnl
		}
		s.Put("NAME", name, true)
	}
}

// Finalize gives every setting that is still empty its default.
func (s *Settings) Finalize() {
	def := func(name, value string) {
		if s.Vars[name] == "" {
			s.Vars[name] = value
		}
	}
	def("CONFDIR", "/etc/nhc")
	def("CONFFILE", s.Vars["CONFDIR"]+"/"+s.Vars["NAME"]+".conf")
	def("INCDIR", s.Vars["CONFDIR"]+"/scripts")
	def("HELPERDIR", s.Vars["LIBEXECDIR"]+"/nhc")
	def("ONLINE_NODE", s.Vars["HELPERDIR"]+"/node-mark-online")
	def("OFFLINE_NODE", s.Vars["HELPERDIR"]+"/node-mark-offline")
	def("LOGFILE", ">>/var/log/"+s.Vars["NAME"]+".log 2>&1")
	def("RESULTFILE", ResultDir+"/"+s.Vars["NAME"]+".status")
	def("DEBUG", "0")
	def("TS", s.Vars["DEBUG"])
	if s.Stamps() {
		s.Vars["TS"] = strconv.FormatInt(time.Now().Unix(), 10)
	}
	def("MARK_OFFLINE", "1")
	def("TIMEOUT", "30")
	def("PASSWD_DATA_SRC", "/etc/passwd")
	for name, value := range checks.Variables() {
		if value != "" {
			def(name, value)
		}
	}
	for _, n := range []string{"SILENT", "VERBOSE", "DETACHED_MODE", "DETACHED_MODE_FAIL_NODATA", "NHC_CHECK_ALL", "NHC_CHECK_FORKED"} {
		def(n, "0")
	}
	for _, n := range []string{
		"NAME", "CONFDIR", "CONFFILE", "INCDIR", "HELPERDIR", "ONLINE_NODE", "OFFLINE_NODE", "LOGFILE", "DEBUG", "TS",
		"SILENT", "TIMEOUT", "NHC_RM",
	} {
		s.Export[n] = true
	}
}

// Timeout is TIMEOUT; what is no positive whole number means none.
func (s *Settings) Timeout() time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("TIMEOUT")))
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// Stamps says whether lines are to have a time stamp: a number other than 0.
func (s *Settings) Stamps() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("TS")))
	return err == nil && n != 0
}

// Marks says whether the node is to be marked, by LBNL's rule: the number 1.
func (s *Settings) Marks() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("MARK_OFFLINE")))
	return err == nil && n == 1 && s.Get("NHC_RM") != ""
}

// Array is the value of an array. A plain variable is one with one element.
func (s *Settings) Array(name string) []string {
	if a, ok := s.Arrays[name]; ok {
		return a
	}
	if v := s.Vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// WorkerVars are the variables and the environment that checks are to see.
func (s *Settings) WorkerVars() wire.Vars {
	v := wire.Vars{Plain: s.Vars, Arrays: s.Arrays, Environ: s.Environ(), Root: s.Get("HOSTROOT"), Past: s.Past, Spare: s.Spare, Slurm: wire.Only[jobscan.SlurmGPUs]{Value: s.Slurm}, WantedGPUs: s.WantedGPUs, Job: wire.Only[checks.Job]{Value: s.Job}, Learn: s.Learn, Period: s.Periodic, Hold: s.Hold || s.Observes() || s.Get("SHELL") == NoAction}
	if len(s.Profiles) > 0 {
		v.ProfilesFile, v.Profiles = s.ProfilesFrom, s.Profiles
	}
	return v
}

// Environ is the environment of workers and commands.
func (s *Settings) Environ() []string {
	var env []string
	for _, n := range slices.Sorted(maps.Keys(s.Export)) {
		if v, ok := s.Vars[n]; ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// ShellText is the bash text that sets all variables.
func (s *Settings) ShellText() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(s.Vars)) {
		if ReadonlyInBash[n] || !IsName(n) {
			continue
		}
		if s.Export[n] {
			b.WriteString("export ")
		}
		b.WriteString(n + "=" + Quote(s.Vars[n]) + "\n")
	}
	for _, n := range slices.Sorted(maps.Keys(s.Arrays)) {
		b.WriteString(n + "=(")
		for _, v := range s.Arrays[n] {
			b.WriteString(" " + Quote(v))
		}
		b.WriteString(" )\n")
	}
	return b.String()
}

// ReadonlyInBash are the variables that bash lets nobody set.
var ReadonlyInBash = map[string]bool{"UID": true, "EUID": true, "PPID": true, "BASHOPTS": true, "SHELLOPTS": true, "BASH_VERSINFO": true, "_": true, "SHLVL": true, "PWD": true, "OLDPWD": true}

// IsName reports whether a variable of a shell can have a name.
func IsName(n string) bool {
	for i, c := range n {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return n != ""
}

// Quote makes one word of bash text.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// CustomHelper says whether the site has a helper of its own for marking the
// node; else we do it ourselves.
func (s *Settings) CustomHelper(name string) bool {
	v := s.Get(name)
	file := "/node-mark-online"
	if name == "OFFLINE_NODE" {
		file = "/node-mark-offline"
	}
	return s.helpers || v != s.Get("HELPERDIR")+file
}

// ProfilesFile is the site's file of profiles.
func (s *Settings) ProfilesFile() string {
	if named := s.Get("PLATFORM_PROFILES"); named != "" {
		return named
	}
	return s.Get("CONFDIR") + "/profiles.toml"
}

// ResultDir is created if it is missing: /run is empty after each boot.
const ResultDir = "/var/run/nhc"

// MarkNothing keeps the run from marking the node.
func (s *Settings) MarkNothing() {
	s.Vars["ONLINE_NODE"], s.Vars["OFFLINE_NODE"], s.Vars["MARK_OFFLINE"] = ":", ":", "0"
}
