package jobscan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestJobOwners(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"jobs/1.srv.JB":    "x=1\n \tPBS_O_LOGNAME=alice\nPBS_O_LOGNAME=carol\n",
		"jobs/2.srv.JB":    "<?xml version=\"1.0\"?>\n<jobs>\n  <euser flags=\"1\">bob</euser>\n<euser>carol</euser>\n",
		"jobs/3.srv.JB":    "PBS_O_LOGNAME=alice",
		"jobs/4.srv.JB":    "nothing\n",
		"jobs/5.srv.JB":    "PBS_O_LOGNAME=\n",
		"jobs/.6.srv.JB":   "PBS_O_LOGNAME=hidden\n",
		"jobs/7.srv.SC":    "PBS_O_LOGNAME=script\n",
		"jobs/8.srv.JB/x/": "",
		"none/1.srv.SC":    "",
		"file":             "",
	}))
	owners, found, err := JobOwners(h, "/jobs")
	if diff := cmp.Diff([]string{"alice", "bob"}, owners); diff != "" || !found || err != nil {
		t.Errorf("found %v, %v (-want +got):\n%s", found, err, diff)
	}
	for _, dir := range []string{"/none", "/absent"} {
		if owners, found, err := JobOwners(h, dir); owners != nil || found || err != nil {
			t.Errorf("%s: %v, %v, %v", dir, owners, found, err)
		}
	}
	if _, _, err := JobOwners(h, "/file"); probetest.Message(err) != "read /file: not a directory" {
		t.Errorf("a file: %v", err)
	}
}

func FuzzJobOwner(f *testing.F) {
	f.Add([]byte("PBS_O_LOGNAME=alice\n"))
	f.Add([]byte("<?xml?>\n<euser flags=\"1\">bob</euser>\n"))
	f.Add([]byte("<?xml?>\n<euser</euser>\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if owner := parseJobOwner(data); strings.ContainsRune(owner, '\n') || !strings.Contains(string(data), owner) {
			t.Errorf("owner %q is not one line of the file", owner)
		}
	})
}
