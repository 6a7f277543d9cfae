package repair

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// The calls of a reset of gpu3, in their order.
const (
	stops      = "systemctl stop dcgm\n"
	modeOff    = "nvidia-smi -i 0000:13:00.0 -pm 0\n"
	resets     = "nvidia-smi --gpu-reset -i 0000:13:00.0\n"
	modeOn     = "nvidia-smi -i 0000:13:00.0 -pm 1\n"
	powerLimit = "nvidia-smi -i 0000:13:00.0 -pl 500.00\n"
	starts     = "systemctl start dcgm\n"
)

// modesBefore are the modes of gpu3 before its reset.
var modesBefore = remedy.Modes{GPU: gpu3.PCI, Values: []string{"Enabled", "500.00", "Default", "Disabled", "Disabled"}}

// hold makes a process of the node use GPU 3.
func (p *patient) hold() {
	p.t.Helper()
	p.Write(p.t, "root/proc/4711/comm", "python\n")
	if err := os.Mkdir(p.Dir+"/root/proc/4711/fd", 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink("/dev/nvidia3", p.Dir+"/root/proc/4711/fd/5"); err != nil {
		p.t.Fatal(err)
	}
}

// Whatever happens, a service that was stopped for a reset is started again, and the modes are as before.
func TestReset(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	const failed = "failed: "
	unnamed, nvswitch := needsReset, needsReset
	unnamed.Device = checks.Device{Kind: "gpu", Name: "gpu3"}
	nvswitch.Device = checks.Device{Kind: "nvswitch", Name: "nvswitch0", PCI: "0000:05:00.0"}
	all := func(call string) string { return strings.ReplaceAll(call, "0000:13:00.0", "0000:10:00.0,0000:11:00.0") }
	allModes := func(option string) string {
		return "nvidia-smi -i 0000:10:00.0 " + option + "\nnvidia-smi -i 0000:11:00.0 " + option + "\n"
	}
	for _, tt := range []struct {
		name   string
		fault  event.Result
		on     string
		change func(*patient)
		did    string
		acts   string
		left   *remedy.Restore // to restore later
	}{
		{name: "it helps", did: "the checks pass", acts: stops + modeOff + resets + modeOn + powerLimit + starts},
		{name: "no persistence mode", change: func(p *patient) {
			p.Write(p.t, "modes", "Disabled, 500.00, Default, Disabled, Disabled\n")
			p.Write(p.t, "afterwards", "Disabled, 500.00, Default, Disabled, Disabled\n")
		}, did: "the checks pass", acts: stops + resets + starts},
		{name: "other modes", change: func(p *patient) {
			p.Write(p.t, "modes", "Disabled, [N/A], Exclusive_Process, Enabled, Disabled\n")
		},
			did:  "the checks pass",
			acts: stops + resets + "nvidia-smi -i 0000:13:00.0 -c EXCLUSIVE_PROCESS\nnvidia-smi -i 0000:13:00.0 -am 1\n" + starts},
		{name: "the modes are unknown", on: `"nvidia-smi --query-gpu="*) exit 1 ;;`,
			did: "the checks pass", acts: stops + resets + starts},
		{name: "the modes are garbage",
			change: func(p *patient) { p.Write(p.t, "modes", "No devices were found\n") }, did: "the checks pass",
			acts: stops + resets + starts},
		{name: "no service runs", on: `"systemctl is-active "*) exit 3 ;;`,
			did: "the checks pass", acts: modeOff + resets + modeOn + powerLimit},
		{name: "all hangs", on: `"nvidia-smi "*|"systemctl "*) exec sleep 60 ;;`,
			change: func(p *patient) { p.rows[2].Timeout = 100 * time.Millisecond }, did: failed + "run nvidia-smi --gpu-reset -i 0000:13:00.0: "},
		{name: "no nvidia-smi",
			change: func(p *patient) { p.without("nvidia-smi") }, did: failed + "run nvidia-smi --gpu-reset -i 0000:13:00.0: ",
			acts: stops + starts},
		{name: "a service does not stop", on: `"systemctl stop "*) echo timeout; exit 1 ;;`,
			did: failed + "run systemctl stop dcgm: exit status 1: timeout", acts: stops + starts},
		{name: "persistence mode stays", on: `*"-pm 0") exit 4 ;;`,
			did: failed + "run nvidia-smi -i 0000:13:00.0 -pm 0: exit status 4", acts: stops + modeOff + starts},
		{name: "a process uses the GPU",
			change: (*patient).hold, did: failed + "processes use the GPUs: 4711 (python); a service among them",
			acts: stops + modeOff + starts},
		{name: "the GPU is lost", on: `"nvidia-smi --gpu-reset "*) echo Unable to reset; exit 15 ;;`,
			did:  failed + "it has fallen off the bus: only a boot or a power cycle helps: run ",
			acts: stops + modeOff + resets + starts},
		{name: "an unknown failure", on: `"nvidia-smi --gpu-reset "*) exit 99 ;;`,
			did: failed + "run nvidia-smi --gpu-reset -i 0000:13:00.0: exit status 99", acts: stops + modeOff + resets + starts},
		{name: "the fault stays",
			change: func(p *patient) { p.found(needsReset) }, did: failed + "afterwards check_gpu_recovery:  bad",
			acts: stops + modeOff + resets + modeOn + powerLimit + starts},
		{name: "a service does not start", on: `"systemctl start "*) exit 1 ;;`,
			did:  failed + "restore after the reset of a GPU: run systemctl start dcgm: exit status 1",
			acts: stops + modeOff + resets + modeOn + powerLimit + starts,
			left: &remedy.Restore{Boot: slurm.BootID(), Services: []string{"dcgm"}}},
		{name: "a mode cannot be set", on: `*"-pl "*) exit 1 ;;`,
			did:  failed + "restore after the reset of a GPU: run nvidia-smi -i 0000:13:00.0 -pl 500.00: exit status 1",
			acts: stops + modeOff + resets + modeOn + powerLimit + starts,
			left: &remedy.Restore{Boot: slurm.BootID(), GPUs: []remedy.Modes{modesBefore}}},
		{name: "MIG mode has changed",
			change: func(p *patient) { p.Write(p.t, "modes", "Enabled, 500.00, Default, Disabled, Enabled\n") },
			did:    failed + "restore after the reset of a GPU: mig.mode.current of 0000:13:00.0 was Enabled and is Disabled now: set it again",
			acts:   stops + modeOff + resets + modeOn + powerLimit + starts},
		{name: "an unknown GPU", fault: unnamed,
			did: failed + "gpu.recovery.reset of gpu3: neither UUID nor PCI address of the GPU is known"},
		{name: "an NVSwitch", fault: nvswitch,
			did: "the checks pass",
			acts: stops + allModes("-pm 0") + all(resets) +
				"nvidia-smi -i 0000:10:00.0 -pm 1\nnvidia-smi -i 0000:10:00.0 -pl 500.00\n" +
				"nvidia-smi -i 0000:11:00.0 -pm 1\nnvidia-smi -i 0000:11:00.0 -pl 500.00\n" + starts},
		{name: "an NVSwitch, and the GPUs are unknown", fault: nvswitch, on: `"nvidia-smi --query-gpu=pci"*) exit 9 ;;`,
			did: failed + "run nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader: exit status 9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			if tt.fault.Check == "" {
				tt.fault = needsReset
			}
			p.reset(tt.fault)
			p.on(tt.on)
			if tt.change != nil {
				tt.change(p)
			}
			fault := remedy.Fault{Code: tt.fault.Code, Device: tt.fault.Device}
			want := result{
				"reset-gpu for " + fault.String() + ": " + tt.did, "",
				setReason + " : remedy reset-gpu\n" + tt.acts, "reset-gpu: failed",
			}
			switch {
			case !strings.HasPrefix(tt.did, failed):
				want.acts, want.tries = want.acts+checkAgain+setReason+"\n"+healthCheck, "reset-gpu: helped"
			case strings.Contains(tt.did, "afterwards"):
				want.acts += checkAgain + setReason + "\n"
			default:
				want.acts += setReason + "\n"
			}
			p.want(p.run(), want)
			if diff := cmp.Diff(tt.left, p.record().Restore); diff != "" {
				t.Errorf("left to restore (-want +got)\n%s", diff)
			}
			succeeds := strings.Contains(tt.acts, resets) && !strings.Contains(tt.on, "--gpu-reset")
			if reset := strings.Contains(p.Read("root/past/xid-reset.json"), gpu3.PCI); reset != succeeds {
				t.Errorf("check_gpu_xid knows of a reset: %v; %v", reset, p.history())
			}
		})
	}
}

// A process that has ended in the middle leaves services stopped: the next one starts them before anything else.
func TestRestore(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	before := func(boot string) *remedy.Restore {
		return &remedy.Restore{Boot: boot, Services: []string{"dcgm"}, GPUs: []remedy.Modes{modesBefore}}
	}
	for _, tt := range []struct {
		name string
		boot string // "": this one
		on   string
		acts string
		left *remedy.Restore
	}{
		{name: "after a crash", acts: modeOn + powerLimit + starts},
		{name: "after a boot", boot: "an earlier one"},
		{name: "a service does not start", on: `"systemctl start "*) exit 1 ;;`, acts: modeOn + powerLimit + starts,
			left: &remedy.Restore{Boot: slurm.BootID(), Services: []string{"dcgm"}}},
		{name: "nvidia-smi hangs", on: `"nvidia-smi "*) exec sleep 60 ;;`, acts: starts,
			left: &remedy.Restore{Boot: slurm.BootID(), GPUs: []remedy.Modes{modesBefore}}},
		{name: "nvidia-smi prints garbage", on: `"nvidia-smi "*) echo garbage; exit ;;`, acts: starts,
			left: &remedy.Restore{Boot: slurm.BootID(), GPUs: []remedy.Modes{modesBefore}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(needsReset)
			p.healthCheck(0, slurm.BootID(), passing(needsReset.Check))
			p.Write(t, "modes", "Disabled, 700.00, Default, Disabled, Disabled\n")
			p.on(tt.on)
			if tt.boot == "" {
				tt.boot = slurm.BootID()
			}
			p.keep(remedy.Record{Boot: "an earlier one", Restore: before(tt.boot)})
			r := p.repair()
			if tt.name == "nvidia-smi hangs" {
				r.restoreLimit = 100 * time.Millisecond
			}
			if did, err := r.Run(p.now); did != "no remedy: the last run found no fault" || err != nil {
				t.Errorf("did %q, %v", did, err)
			}
			if got := p.acts(); got != tt.acts {
				t.Errorf("acted\n%s\nwant\n%s", got, tt.acts)
			}
			if diff := cmp.Diff(tt.left, p.record().Restore); diff != "" {
				t.Errorf("left to restore (-want +got)\n%s", diff)
			}
		})
	}
	// The next reset also restores what the last one could not: a service that it did not start is not active.
	t.Run("before the next reset", func(t *testing.T) {
		p := p.in(t)
		p.reset(needsReset)
		p.Write(t, "modes", "Enabled, 700.00, Default, Disabled, Disabled\n")
		p.on(`"systemctl is-active "*) exit 3 ;;
"systemctl start "*|*"-pl 500.00") from 3 || exit 1 ;;`)
		p.keep(remedy.Record{Boot: "an earlier one", Restore: before(slurm.BootID())})
		p.want(p.run(), result{
			"reset-gpu for gpu.recovery.reset of gpu3 0000:13:00.0: the checks pass", "",
			powerLimit + starts + setReason + " : remedy reset-gpu\n" + stops + modeOff + resets + modeOn + powerLimit + starts +
				checkAgain + setReason + "\n" + healthCheck, "reset-gpu: helped",
		})
		if left := p.record().Restore; left != nil {
			t.Errorf("left to restore: %+v", left)
		}
	})
	t.Run("another GPU does not answer", func(t *testing.T) {
		p := p.in(t)
		p.reset(needsReset)
		p.on(`*"-i 0000:15:00.0"*) exit 1 ;;`)
		left := &remedy.Restore{Boot: slurm.BootID(), GPUs: []remedy.Modes{{GPU: "0000:15:00.0", Values: modesBefore.Values}}}
		p.keep(remedy.Record{Boot: "an earlier one", Restore: left})
		p.want(p.run(), result{
			"reset-gpu for gpu.recovery.reset of gpu3 0000:13:00.0: failed: restore after the reset of a GPU: run nvidia-smi ", "",
			setReason + " : remedy reset-gpu\n" + stops + modeOff + resets + modeOn + powerLimit + starts + setReason + "\n",
			"reset-gpu: failed",
		})
		if diff := cmp.Diff(left, p.record().Restore); diff != "" {
			t.Errorf("left to restore (-want +got)\n%s", diff)
		}
	})
}
