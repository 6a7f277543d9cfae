// Package monitoring has what tests of the alerts and the dashboards share, and tests the plugin of
// node-problem-detector. tests/slurm scrapes nodes with these expressions.
package monitoring

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// root is the directory of the project from a package of tests.
const root = "../.."

// Alerts returns the expressions of the alerts.
func Alerts(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(root + "/conf/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			list[r.Alert] = r.Expr
		}
	}
	if len(list) < 5 {
		t.Fatalf("only %d alerts", len(list))
	}
	return list
}

// Dashboard is the part of a dashboard that tests read.
type Dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr       string
			Datasource struct{ UID string }
		}
	}
}

// Dashboards returns the dashboards.
func Dashboards(t *testing.T) (list []Dashboard) {
	t.Helper()
	files, _ := filepath.Glob(root + "/conf/grafana/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d Dashboard
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		list = append(list, d)
	}
	if len(list) != 2 {
		t.Fatalf("%d dashboards, want 2", len(list))
	}
	return list
}

// Read returns a file.
func Read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// given has the addresses that FreeAddress has returned.
var given sync.Map

// FreeAddress returns an address of this machine that nothing listens on, another one each time. The
// loopback address is of this process alone: a connection of another one may have any port of 127.0.0.1.
func FreeAddress(t *testing.T) string {
	t.Helper()
	pid := os.Getpid()
	host := netip.AddrFrom4([4]byte{127, byte(1 + pid>>16), byte(pid >> 8), byte(pid)})
	for {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		_ = l.Close()
		if _, again := given.LoadOrStore(address, true); !again {
			return address
		}
	}
}

// Start runs a server until the end of the test.
func Start(t *testing.T, argv ...string) {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", argv[0], Read(t, log.Name()))
		}
	})
}

// Server is the address of a Prometheus.
type Server string

// Ask returns the number of series of an expression.
func (s Server) Ask(t *testing.T, expr string) int {
	t.Helper()
	n, err := s.query(expr)
	if err != nil {
		t.Errorf("%s: %v", expr, err)
	}
	return n
}

func (s Server) query(expr string) (int, error) {
	resp, err := http.Get(string(s) + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, errors.New(answer.Error)
	}
	return len(answer.Data.Result), nil
}

// Wait waits until an expression has a result.
func (s Server) Wait(t *testing.T, expr string) {
	t.Helper()
	var n int
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if n, err = s.query(expr); err == nil && n > 0 {
			return
		}
	}
	t.Fatalf("%s: %d series, %v", expr, n, err)
}
