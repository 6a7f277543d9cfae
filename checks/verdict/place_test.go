package verdict

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const badPlace = `{"slot":"7","far_end":"leaf03 port 13","netdev":"ib3","transceiver":{"form":"OSFP","vendor":"NVIDIA","part":"MMA4Z00-NS","serial":"MT2240FT00001"},` +
	`"devlink":[{"name":"fw","state":"error","errors":3,"recoveries":0}]}`

// badPort returns a finding about a port with a complete place.
func badPort(t *testing.T) checks.Finding {
	t.Helper()
	f := checks.Finding{
		Code: "ib.ports.polling", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_3:1", PCI: "0000:23:00.0"},
		Message: "check_ib_ports:  mlx5_3:1 0000:23:00.0: no link (slot 7, to leaf03 port 13)",
	}
	if err := json.Unmarshal([]byte(badPlace), &f.Place); err != nil {
		t.Fatal(err)
	}
	return f
}

// The part of a bad port's place that is not in the message goes to syslog, never to the
// reason in Slurm.
func TestDetailGoesToSyslog(t *testing.T) {
	t.Parallel()
	var p tape
	p.Mark = true
	p.native("check_ib_ports", []checks.Finding{badPort(t)})
	const detail = "S mlx5_3:1 0000:23:00.0: transceiver OSFP NVIDIA MMA4Z00-NS, serial MT2240FT00001; devlink health fw: error, 3 errors, 0 recoveries"
	out := render(p.events)
	if !slices.Contains(out, detail) {
		t.Errorf("no detail: %q", out)
	}
	for _, line := range out {
		if strings.HasPrefix(line, "offline ") && strings.Contains(line, "MMA4Z00") {
			t.Errorf("in the reason: %s", line)
		}
	}
}

func TestPlaceInJSON(t *testing.T) {
	t.Parallel()
	f := badPort(t)
	r := &Report{Rows: []Row{{Severity: f.Severity, Name: "check_ib_ports", Code: f.Code, Device: f.Device, Message: f.Message, Place: f.Place}}}
	text := func() string {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const want = `"place":` + badPlace
	if got := text(); !strings.Contains(got, want) {
		t.Errorf("%s lacks %s", got, want)
	}
	r.Redact()
	if got := text(); strings.Contains(got, "MT2240FT00001") || !strings.Contains(got, "MMA4Z00-NS") {
		t.Errorf("redacted: %s", got)
	}
	if f.Place.Transceiver.Serial != "MT2240FT00001" {
		t.Error("the finding itself was redacted")
	}
}
