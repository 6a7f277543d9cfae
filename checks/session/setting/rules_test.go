package setting

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// of returns settings with words such as A=1.
func of(t *testing.T, words ...string) *Settings {
	t.Helper()
	s := &Settings{Vars: map[string]string{}, Export: map[string]bool{}, Arrays: map[string][]string{}}
	for _, w := range words {
		if err := s.Word(w); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestWrongChoices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ words, want string }{
		{"", ""},
		{"MODE=observe CONFIG_ERRORS=drain", ""},
		{"MODE=guess", "MODE=guess: want enforce or observe"},
		{"CONFIG_ERRORS=maybe", "CONFIG_ERRORS=maybe: want"},
		{"TIMEOUT=30VERBOSE=1", "TIMEOUT=30VERBOSE=1: two settings in one word: write each on a line of its own"},
		{"MODE=guess TIMEOUT=30NHC_RM=slurm", "MODE=guess"},
	} {
		err := of(t, strings.Fields(tt.words)...).WrongChoices()
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.words, err, tt.want)
		}
	}
}

func TestGlued(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, value, want string }{
		{"NHC_CHECK_ALL", "1MODE=observe", "MODE=observe"},
		{"NHC_CHECK_ALL", "1MARK_OFFLINE=0", "MARK_OFFLINE=0"},
		{"NHC_CHECK_ALL", "1", ""},
		{"CONFFILE", "MODE=x", ""},       // the value begins with it
		{"LOGFILE", ">>/log MODE=x", ""}, // a word of its own
		{"SITE_SETTING", "1MODE=x", ""},  // not ours
		{"CONFFILE", "/etc/COMODE=x", "MODE=x"},
	} {
		if got := Glued(tt.name, tt.value); got != tt.want {
			t.Errorf("%s=%s: %q, want %q", tt.name, tt.value, got, tt.want)
		}
	}
}

// A setting of the command line or the sysconfig file overrides nhc.toml.
func TestChoose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ word, want string }{{"X=1", "observe"}, {"MODE=enforce", "enforce"}} {
		s := of(t, tt.word)
		s.Choose(nil)
		s.Choose(&conf.Config{Chosen: map[string]string{"MODE": "observe"}})
		if got := s.Get("MODE"); got != tt.want || s.Observes() != (tt.want == "observe") {
			t.Errorf("%s: MODE=%s, want %s", tt.word, got, tt.want)
		}
	}
}

// The program that is called as LBNL NHC drains for an error of the configuration, as LBNL NHC does.
func TestConfigErrorsDrain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		argv0, words string
		name         string
		want         bool
	}{
		{"/usr/sbin/nhc-gpu", "", "nhc", false},
		{"/usr/sbin/nhc-gpu.new", "", "nhc", false},
		{"/usr/sbin/nhc", "", "nhc", true},
		{"/usr/sbin/nhc-gpu", "NAME=nhc", "nhc", true},
		{"/usr/sbin/nhc", "CONFIG_ERRORS=unknown", "nhc", false},
		{"/usr/sbin/nhc-gpu", "CONFIG_ERRORS=drain", "nhc", true},
		{"/usr/sbin/nhc-cron", "", "nhc-cron", false},
	} {
		s := of(t, strings.Fields(tt.words)...)
		if s.Preset(tt.argv0); s.ConfigErrorsDrain() != tt.want || s.Get("NAME") != tt.name {
			t.Errorf("%s %s: drains %v, NAME=%s", tt.argv0, tt.words, s.ConfigErrorsDrain(), s.Get("NAME"))
		}
	}
}

func TestWord(t *testing.T) {
	t.Parallel()
	s := of(t, "A=1", "L=( a 'b c' )", "A=( x )", "export E=2")
	if _, set := s.Lookup("A"); set {
		t.Error("a variable that became an array is still a variable")
	}
	if diff := cmp.Diff(map[string][]string{"L": {"a", "b c"}, "A": {"x"}}, s.Arrays); diff != "" {
		t.Errorf("arrays (-want +got)\n%s", diff)
	}
	if !s.Export["E"] || s.Export["L"] {
		t.Errorf("exported %v", s.Export)
	}
	if err := s.Word("no assignment"); err == nil {
		t.Error("a word without = is a setting")
	}
}

// No check carries out an action if the run only observes.
func TestWorkerVars(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Settings)
		dry    bool
	}{
		{"a run", func(*Settings) {}, false},
		{"a person's run", func(s *Settings) { s.DryRun = true }, true},
		{"observe", func(s *Settings) { s.Put("MODE", "observe", true) }, true},
		{"SHELL=:", func(s *Settings) { s.Put("SHELL", NoAction, true) }, true},
	} {
		s := of(t, "HOSTROOT=/recorded", "A=1")
		s.Past, s.Spare, s.WantedGPUs, s.Periodic, s.Part, s.Learn, s.Job = "/past", "/spare", 8, true, true, true, &checks.Job{ID: "7"}
		tt.change(s)
		v := s.WorkerVars()
		if v.DryRun != tt.dry || v.Root != "/recorded" || v.Past != "/past" || v.Spare != "/spare" || v.WantedGPUs != 8 || !v.Period || !v.Part || !v.Learn || v.Job.ID != "7" || v.Plain["A"] != "1" {
			t.Errorf("%s: %+v", tt.name, v)
		}
		if v.ProfilesFile != "" {
			t.Errorf("%s: profiles of %s", tt.name, v.ProfilesFile)
		}
		s.Profiles, s.ProfilesFrom = []byte("x"), "/p.toml"
		if v = s.WorkerVars(); v.ProfilesFile != "/p.toml" || string(v.Profiles) != "x" {
			t.Errorf("%s: profiles %q of %s", tt.name, v.Profiles, v.ProfilesFile)
		}
	}
}

func TestFilesOfSettings(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"CONFDIR=/etc/nhc": "/etc/nhc/profiles.toml", "PLATFORM_PROFILES=/p.toml": "/p.toml"} {
		if got := of(t, word).ProfilesFile(); got != want {
			t.Errorf("%s: %s, want %s", word, got, want)
		}
	}
	s := of(t)
	for there, want := range map[string][2]string{
		"/etc/debian_version /etc/sysconfig /etc/default": {"/etc/default", "/usr/lib"},
		"/etc/sysconfig /etc/default":                     {"/etc/sysconfig", "/usr/libexec"},
		"/etc/default":                                    {"/etc/default", "/usr/libexec"},
		"":                                                {"/etc/nhc/sysconfig", "/usr/libexec"},
	} {
		first := ""
		for _, path := range slices.Backward(Signs) {
			if slices.Contains(strings.Fields(there), path) {
				first = path
			}
		}
		if s.Distribution(first); s.Get("SYSCONFIGDIR") != want[0] || s.Get("LIBEXECDIR") != want[1] {
			t.Errorf("a node with %s: %v", there, s.Vars)
		}
	}
}

// What the environment sets is not the site's, even if the site sets another variable with its value.
func TestSiteExports(t *testing.T) {
	t.Parallel()
	s := New([]string{"SLURM_JWT=x", "SLURM_A=x", "SLURM_B=x"}, false)
	s.Put("SLURM_A", "y", false)
	s.Put("C", "z", true)
	s.Put("PLAIN", "z", false)
	var got []string
	for _, e := range s.SiteExports() {
		if strings.HasSuffix(e, "=x") || strings.HasSuffix(e, "=y") || strings.HasSuffix(e, "=z") {
			got = append(got, e)
		}
	}
	if want := []string{"C=z", "SLURM_A=y"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A run that marks nothing has no helper and no resource manager to call.
func TestMarkNothing(t *testing.T) {
	t.Parallel()
	s := of(t, "MARK_OFFLINE=1", "NHC_RM=slurm")
	if s.MarkNothing(); s.Marks() || s.Get("OFFLINE_NODE") != ":" || s.Get("ONLINE_NODE") != ":" {
		t.Errorf("marks %v with %v", s.Marks(), s.Vars)
	}
}
