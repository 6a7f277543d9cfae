package slurm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// configOf returns the recorded output of scontrol show config of some release.
func configOf(t *testing.T, name string) Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/config", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// figures are the values that Advise reads from a configuration.
type figures struct {
	Prolog, Epilog        []string
	Interval, Timeout     time.Duration
	Batch, Before, Behind time.Duration
	Alloc, Nohold, Newest bool
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	seconds := func(c Config, keys ...string) time.Duration {
		for _, key := range keys {
			if d, ok, err := c.Seconds(key); ok || err != nil {
				return d
			}
		}
		return -1
	}
	prologs, epilogs := []string{"/etc/slurm/prolog.d/*"}, []string{"/etc/slurm/epilog.d/*"}
	two := append(prologs[:1:1], "/usr/local/sbin/other")
	for name, want := range map[string]figures{
		"22.05-default": {Interval: 0, Timeout: -1, Batch: 10 * time.Second, Before: forever, Behind: forever},
		"24.11-default": {Interval: 0, Timeout: -1, Batch: 10 * time.Second, Before: forever, Behind: forever},
		"26.05-default": {Interval: 0, Timeout: 0, Batch: 10 * time.Second, Before: forever, Behind: forever, Newest: true},
		"22.05-wired": {
			Prolog: prologs, Epilog: epilogs, Interval: 300 * time.Second, Timeout: -1, Batch: time.Minute,
			Before: time.Minute, Behind: time.Minute, Alloc: true, Nohold: true,
		},
		"24.11-wired": {
			Prolog: two, Epilog: epilogs, Interval: 300 * time.Second, Timeout: -1, Batch: time.Minute,
			Before: time.Minute, Behind: time.Minute, Alloc: true, Nohold: true,
		},
		"26.05-wired": {
			Prolog: two, Epilog: epilogs, Interval: 300 * time.Second, Timeout: 55 * time.Second, Batch: time.Minute,
			Before: 45 * time.Second, Behind: 90 * time.Second, Alloc: true, Nohold: true, Newest: true,
		},
	} {
		c := configOf(t, name)
		got := figures{
			Prolog: c.Programs("Prolog"), Epilog: c.Programs("Epilog"),
			Interval: seconds(c, "HealthCheckInterval"), Timeout: seconds(c, "HealthCheckTimeout"), Batch: seconds(c, "BatchStartTimeout"),
			Before: seconds(c, "PrologTimeout", "PrologEpilogTimeout"), Behind: seconds(c, "EpilogTimeout", "PrologEpilogTimeout"),
			Alloc: c.Has("PrologFlags", "Alloc"), Nohold: c.Has("SchedulerParameters", "nohold_on_prolog_fail"), Newest: c.AtLeast("26.05"),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestConfigValues(t *testing.T) {
	t.Parallel()
	c, err := ParseConfig([]byte("Configuration data as of 2026\nA = b=c d\nProlog = prolog.d/*\nSLURM_CONF = /etc/slurm/slurm.conf\n" +
		"SLURM_VERSION = 23.11.1\nW = INFINITE\nX = 7 min\nY = -1\nZ = 70000 sec\n\nMPI:\nTimeout = 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Value("A"); got != "b=c d" {
		t.Errorf("A is %q", got)
	}
	if got := c.Programs("Prolog"); !cmp.Equal(got, []string{"/etc/slurm/prolog.d/*"}) {
		t.Errorf("a prolog that is no whole path is %q", got)
	}
	if _, ok := c["Timeout"]; ok {
		t.Error("a key of another section was taken")
	}
	for _, key := range []string{"X", "Y"} {
		if _, _, err := c.Seconds(key); !errors.Is(err, errNoSeconds) {
			t.Errorf("%s: %v, want %v", key, err, errNoSeconds)
		}
	}
	if d, ok, err := c.Seconds("W"); d != forever || !ok || err != nil {
		t.Errorf("W is %v, %v, %v", d, ok, err)
	}
	if d, _, _ := c.Seconds("Z"); d != 70000*time.Second {
		t.Errorf("Z is %v", d)
	}
	for _, text := range []string{"", "slurm_load_ctl_conf error: Unable to contact slurm controller\n", "a = b\n"} {
		if _, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%q was taken for a configuration", text)
		}
	}
}

func TestControllerConfig(t *testing.T) {
	t.Parallel()
	c := controller(t, &fake{on: func(*fake, string) (Output, error, bool) {
		return Output{Stdout: []byte("SLURM_VERSION = 22.05.8\n")}, nil, true
	}})
	conf, err := AskConfig(t.Context(), c)
	if err != nil || !cmp.Equal(conf, Config{"SLURM_VERSION": "22.05.8"}) {
		t.Errorf("got %v, %v", conf, err)
	}
	c = controller(t, &fake{on: func(f *fake, call string) (Output, error, bool) {
		out, err := refused(f, call)
		return out, err, true
	}})
	if _, err = AskConfig(t.Context(), c); err == nil || !strings.Contains(err.Error(), "connect failure") {
		t.Errorf("slurmctld is down: %v", err)
	}
}
