package xid

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// noteReset records that a remedy has reset GPUs.
func (m *xidMachine) noteReset(gpus ...string) {
	m.t.Helper()
	if err := NoteReset(m.env(), gpus); err != nil {
		m.t.Error(err)
	}
}

// Drivers before 565 log nothing of nvidia-smi --gpu-reset, and NVML has no recovery action: only the
// remedy that has reset the GPU knows of it.
func TestXidOwnReset(t *testing.T) {
	t.Parallel()
	for name, gpu := range map[string]string{"by address": c1, "by UUID": nvidia.DriverGPUUUID(newXidMachine(t).env().Host, c1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.driver("550.90.07")
			m.xid(95, "Uncontained")
			m.look("fail xid.95 reset-gpu")
			m.say("NVRM: Xid (PCI:0000:18:00): 95, of another GPU")
			m.noteReset(gpu)
			m.look("fail xid.95 reset-gpu")
			m.noteReset("0000:18:00.0")
			m.look()
			m.look()
			m.xid(95, "Uncontained") // within the burst of the first one
			m.look("fail xid.95 reset-gpu")
			m.noteReset(gpu)
			m.look()
			m.reboot()
			m.xid(95, "Uncontained")
			m.look("fail xid.95 reset-gpu")
			m.noteReset(gpu)
			m.look()
		})
	}
}

// A ledger that lacks the records of the resets costs no run.
func TestXidResetOfDamagedLedger(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.driver("550.90.07")
	m.xid(95, "Uncontained")
	m.look("fail xid.95 reset-gpu")
	ledger, _, _ := recallXids(m.env())
	if ledger.ResetAt == nil {
		t.Fatal("the ledger has no reset: the test shows nothing")
	}
	ledger.ResetAt = nil
	if err := m.env().Host.Keep(xidLedgerName, ledger); err != nil {
		t.Fatal(err)
	}
	m.noteReset(c1)
	m.look()
}

// An error that the check reads after the reset, but that the kernel has logged before it, is over.
func TestXidOwnResetOrder(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.driver("550.90.07")
	m.xid(95, "Uncontained")
	m.noteReset(c1)
	m.xid(119, "Timeout")
	m.look("fail xid.119 reset-gpu")
}

func TestXidOwnResetErrors(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(95, "x")
	if err := NoteReset(m.env(), []string{"0"}); err == nil {
		t.Error("an unknown GPU has been reset")
	}
	m.write("past/xid-reset.json", "{")
	m.look("fail xid.95 reset-gpu")
	m.noteReset(c1)
	m.look()
	m.past = ""
	if err := NoteReset(m.env(), []string{c1}); err == nil {
		t.Error("a reset was recorded without memory")
	}
}

// The reset of all GPUs is one of the switches, too.
func TestXidSwitchReset(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	fatal := func() {
		m.say("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
	}
	fatal()
	const fail = "fail sxid.20034 reset-gpu"
	m.look(fail)
	gpus, err := nvidia.DriverGPUs(m.env().Host)
	if err != nil || len(gpus) != 8 {
		t.Fatalf("%v, %v", gpus, err)
	}
	m.noteReset(gpus[0])
	m.look(fail)
	fatal()
	m.noteReset(gpus[1:]...)
	m.look(fail) // the first GPU was reset before the last error
	m.noteReset(gpus[0])
	m.look()
	fatal()
	m.look(fail)
	for _, gpu := range gpus {
		m.say("vfio-pci " + gpu + ": reset done")
	}
	m.look()
}
