package genconf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"mvdan.cc/sh/v3/shell"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

func TestServices(t *testing.T) {
	t.Parallel()
	list := []inventory.Service{
		{Args: "/lib/systemd/systemd-journald", User: "root", Unit: "systemd-journald"},
		{Args: "sshd: joe [priv]", User: "root", Unit: "ssh"},
		{Args: "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", User: "root", Unit: "ssh"},
		{Args: "vi /etc/ssh/sshd_config", User: "root"},
		{Args: "/usr/sbin/cron -f", User: "root", Unit: "cron"},
		{Args: "/usr/sbin/rsyslogd -n", User: "root", Unit: "rsyslog"},
		{Args: "/usr/sbin/chronyd -F 1", User: "_chrony", UID: 105},
		{Args: "/usr/sbin/munged", User: "munge", UID: 990, Unit: "munge"},
		{Args: "/usr/sbin/slurmd -D", User: "root", Unit: "slurmd"},
		{Args: "/usr/bin/nvidia-persistenced --user nvidia-persistenced", User: "nvidia-persistenced", UID: 110, Unit: "nvidia-persistenced"},
		{Args: "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg", User: "root"},
		{Args: "/usr/bin/python3 -Es /usr/sbin/tuned -l -P", User: "root", Unit: "tuned"},
		{Args: "/usr/sbin/sssd -i", UID: 4711},
		{Args: "/usr/bin/a-job --of joe", User: "joe", UID: 1000},
	}
	const sshd = `-u root -f -m '@(*/sshd|*/sshd *)' `
	for name, tt := range map[string]struct {
		debian bool
		want   []string
	}{
		"by unit": {false, []string{
			"-u root systemd-journald", sshd + "ssh", "-u root cron", "-u root -d rsyslogd rsyslog", "-u _chrony chronyd", "sssd",
			"-u munge -d munged munge", "-u root slurmd", "-u nvidia-persistenced nvidia-persistenced",
			"-u root -d nv-fabricmanager nvidia-fabricmanager", "-u root -f -m '@(*/tuned|*/tuned *)' tuned",
		}},
		"Debian's names": {true, []string{
			"-u root systemd-journald", sshd + "ssh", "-u root cron", "-u root -d rsyslogd rsyslog", "-u _chrony -d chronyd chrony", "sssd",
			"-u munge -d munged munge", "-u root slurmd", "-u nvidia-persistenced nvidia-persistenced",
			"-u root -d nv-fabricmanager nvidia-fabricmanager", "-u root -f -m '@(*/tuned|*/tuned *)' tuned",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, d := range daemons {
				if s, ok := d.find(list); ok {
					line, _ := checkLine("check_ps_service", d.words(s, tt.debian))
					got = append(got, strings.TrimPrefix(line, "check_ps_service "))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// A service that starts on demand does not run after a boot, so its line is a comment.
func TestServiceOnDemand(t *testing.T) {
	t.Parallel()
	for _, onDemand := range []bool{false, true} {
		var s sheet
		s.service(inventory.Service{Unit: "ssh", OnDemand: onDemand}, []string{"-u", "root", "ssh"})
		const line = " * || check_ps_service -u root ssh\n"
		text := s.render("*")
		if active := strings.Contains(text, "\n"+line); active == onDemand {
			t.Errorf("on demand %v:\n%s", onDemand, text)
		}
		if reason := "# not written, ssh starts only when it is needed"; strings.Contains(text, reason) != onDemand {
			t.Errorf("on demand %v:\n%s", onDemand, text)
		}
	}
}

// TestServicesPass runs daemons of all forms under their names and has the
// check find them by the lines written for them.
func TestServicesPass(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for pid, args := range map[string]string{
		"10": "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", "11": "/usr/sbin/cron\x00-f", "12": "/usr/sbin/rsyslogd\x00-n",
		"13": "/usr/bin/python3\x00-Es\x00/usr/sbin/tuned\x00-l",
	} {
		must(t, os.MkdirAll(root+"/proc/"+pid, 0o755))
		must(t, os.WriteFile(root+"/proc/"+pid+"/cmdline", []byte(args+"\x00"), 0o644))
		must(t, os.WriteFile(root+"/proc/"+pid+"/status", []byte("Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n"), 0o644))
	}
	must(t, os.MkdirAll(root+"/etc", 0o755))
	must(t, os.WriteFile(root+"/etc/passwd", []byte("root:x:0:0::/root:/bin/sh\n"), 0o644))
	inv, err := inventory.Take(probe.NewHost(root), inventory.PartServices, "")
	must(t, err)
	n := 0
	for _, d := range daemons {
		s, ok := d.find(inv.Services)
		if !ok {
			continue
		}
		n++
		if findings := runCheck(t, root, "check_ps_service", d.words(s, true)); len(findings) > 0 {
			t.Errorf("%s: %v", d.program, findings)
		}
	}
	if n != 4 {
		t.Errorf("%d daemons found, want 4", n)
	}
}

// The lines of conf/examples/nhc.conf find the daemons that they name by their real titles, and no session.
func TestExampleDaemons(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../../conf/examples/nhc.conf")
	must(t, err)
	lines, _, err := conf.Parse("nhc.conf", data)
	must(t, err)
	type title struct {
		args, uid string
		daemon    bool
	}
	titles := map[string][]title{ // by the last word of the line
		"rsyslog": {{"/usr/sbin/rsyslogd\x00-n", "0", true}},
		"munge":   {{"/usr/sbin/munged", "990", true}},
		"sshd": {
			{"sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", "0", true}, {"/usr/sbin/sshd\x00-D", "0", true}, {"/usr/sbin/sshd", "0", true},
			{"sshd: alice@pts/0", "0", false}, {"sshd: alice [priv]", "0", false}, {"sshd-session: alice [priv]", "0", false},
		},
	}
	for _, l := range lines {
		words, err := shell.Fields(l.Check, nil)
		if err != nil || !strings.HasPrefix(l.Check, "check_ps_") { // a line for bash
			continue
		}
		service := words[len(words)-1]
		if len(titles[service]) == 0 {
			t.Errorf("%s: no title to try it with", l.Check)
		}
		for _, p := range titles[service] {
			root := t.TempDir()
			for name, text := range map[string]string{
				"proc/10/cmdline": p.args + "\x00", "proc/10/status": "Name:\tx\nState:\tS\nUid:\t" + p.uid + "\t" + p.uid + "\t0\t0\nVmSize:\t1 kB\n",
				"etc/passwd": "root:x:0:0::/root:/bin/sh\nmunge:x:990:990::/:/bin/sh\n",
			} {
				must(t, os.MkdirAll(filepath.Dir(root+"/"+name), 0o755))
				must(t, os.WriteFile(root+"/"+name, []byte(text), 0o644))
			}
			if findings := runCheck(t, root, words[0], words[1:]); (len(findings) == 0) != p.daemon {
				t.Errorf("%s: with %q: %v", l.Check, p.args, findings)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// runCheck runs a check on a node of files.
func runCheck(t *testing.T, root, name string, words []string) []checks.Finding {
	t.Helper()
	info, _ := checks.Lookup(name)
	c := info.New()
	must(t, checks.Bind(c, words))
	return c.Run(t.Context(), &checks.Env{Host: probe.NewHost(root)})
}
