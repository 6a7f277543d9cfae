package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// resetStatus are the exit statuses of nvidia-smi that matter for a reset (nvidia-smi(1), driver 550).
var resetStatus = map[int]string{
	3:   "the GPU does not permit it",
	4:   "no permission",
	8:   "its power cables are not attached",
	9:   "the driver is not loaded",
	10:  "the kernel has an interrupt problem with it",
	14:  "its infoROM is damaged",
	15:  "it has fallen off the bus: only a boot or a power cycle helps",
	255: "a process or another GPU of its NVLink domain uses it",
}

// gpuModes are the settings of a GPU that a reset loses, by the names of nvidia-smi --query-gpu, and the
// options that set them. MIG mode would need a further reset.
var gpuModes = []struct {
	name   string
	option string // "": only named
	value  func(was string) string
}{
	{"persistence_mode", "-pm", asNumber},
	{"power.limit", "-pl", strings.Clone},
	{"compute_mode", "-c", strings.ToUpper},
	{"accounting.mode", "-am", asNumber},
	{"mig.mode.current", "", nil},
}

// asNumber returns nvidia-smi's number for the word that it prints.
func asNumber(was string) string { return map[bool]string{true: "1", false: "0"}[was == "Enabled"] }

// resetGPUs resets the GPUs of faults. What it stops for that, and the modes, are stored first; they are
// restored in any case.
func (r *Repair) resetGPUs(ctx context.Context, next *remedy.Next) error {
	ids, err := r.choose(ctx, next.Faults)
	if err != nil {
		return err
	}
	restore := r.Record.Restore // what an earlier reset has left to restore
	if boot := slurm.BootID(); restore == nil || restore.Boot != boot {
		restore = &remedy.Restore{Boot: boot}
	}
	r.Record.Restore = restore
	for _, id := range ids {
		if slices.ContainsFunc(restore.GPUs, func(m remedy.Modes) bool { return m.GPU == id }) {
			continue
		}
		if modes, err := r.modes(ctx, id); err != nil { // a GPU that needs a reset can refuse to answer
			r.Warn(fmt.Errorf("the modes of the GPU are not restored: %w", err))
		} else {
			restore.GPUs = append(restore.GPUs, remedy.Modes{GPU: id, Values: modes})
		}
	}
	for _, service := range next.Services {
		if slices.Contains(restore.Services, service) {
			continue
		}
		if _, err := r.run(ctx, []string{"systemctl", "is-active", "--quiet", service}, nil); err == nil {
			restore.Services = append(restore.Services, service)
		}
	}
	if err := node.KeepRemedies(r.Node, r.Record, false); err != nil {
		return err
	}
	return errors.Join(r.reset(ctx, ids, restore), r.restore())
}

// choose returns the GPUs that must be reset for faults, by PCI address, or else by UUID: without its
// driver a GPU has no UUID. The reset of all GPUs is that of the NVSwitches.
func (r *Repair) choose(ctx context.Context, faults []remedy.Fault) (ids []string, err error) {
	for _, f := range faults {
		if f.Device.Kind == "nvswitch" {
			o, err := r.run(ctx, []string{"nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"}, nil)
			return strings.Fields(string(o.Stdout)), err
		}
		id := cmp.Or(f.Device.PCI, f.Device.UUID)
		if id == "" {
			return nil, fmt.Errorf("%s: neither UUID nor PCI address of the GPU is known", f)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// modes returns the values of gpuModes of a GPU.
func (r *Repair) modes(ctx context.Context, id string) ([]string, error) {
	var names []string
	for _, mode := range gpuModes {
		names = append(names, mode.name)
	}
	argv := []string{"nvidia-smi", "--query-gpu=" + strings.Join(names, ","), "--format=csv,noheader,nounits", "-i", id}
	o, err := r.run(ctx, argv, nil)
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(o.Stdout), "\n")
	modes := strings.Split(strings.TrimSpace(line), ", ")
	if len(modes) != len(gpuModes) {
		return nil, fmt.Errorf("run %s: want %d values, got %q", strings.Join(argv, " "), len(gpuModes), line)
	}
	return modes, nil
}

// reset stops the services and modes that use the GPUs, and resets them. Persistence mode alone would be
// a user of the GPU.
func (r *Repair) reset(ctx context.Context, ids []string, stop *remedy.Restore) error {
	for _, service := range stop.Services {
		if _, err := r.run(ctx, []string{"systemctl", "stop", service}, nil); err != nil {
			return err
		}
	}
	for _, gpu := range stop.GPUs {
		if gpu.Values[0] != "Enabled" || !slices.Contains(ids, gpu.GPU) {
			continue
		}
		if _, err := r.run(ctx, []string{"nvidia-smi", "-i", gpu.GPU, "-pm", "0"}, nil); err != nil {
			return err
		}
	}
	holders, err := node.GPUHolders(r.Node)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return fmt.Errorf("processes use the GPUs: %s; a service among them belongs into services of [remedy.NAME]", strings.Join(holders, ", "))
	}
	_, err = r.run(ctx, []string{"nvidia-smi", "--gpu-reset", "-i", strings.Join(ids, ",")}, nil)
	var f *failure
	if errors.As(err, &f) && resetStatus[f.Status] != "" {
		return fmt.Errorf("%s: %w", resetStatus[f.Status], err)
	}
	if err == nil { // drivers before 565 log none of it, later ones not always
		if failed := node.NoteGPUReset(r.Node, ids); failed != nil {
			r.report("reset-gpu: check_gpu_xid does not learn of the reset: %v", failed)
		}
	}
	return err
}

// restoreLimit bounds the commands of a restoration that set modes together, and the start of each service: a
// broken GPU can hang nvidia-smi, or a service that uses it, and the other services must start nevertheless.
const restoreLimit = 2 * time.Minute

// restore sets the modes and starts the services as they were before the reset of a GPU, and forgets
// them. Those that fail are tried again before the next remedy of this boot.
func (r *Repair) restore() error {
	stopped := r.Record.Restore
	if stopped == nil {
		return nil
	}
	left := remedy.Restore{Boot: stopped.Boot}
	if stopped.Boot != slurm.BootID() { // a boot has restored everything
		stopped = &left
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.restoreLimit)
	defer cancel()
	var all error
	for _, gpu := range stopped.GPUs {
		again, err := r.restoreModes(ctx, gpu)
		if all = errors.Join(all, err); again {
			left.GPUs = append(left.GPUs, gpu)
		}
	}
	for _, service := range stopped.Services {
		if err := r.start(service); err != nil {
			all, left.Services = errors.Join(all, err), append(left.Services, service)
		}
	}
	r.Record.Restore = nil
	if left.GPUs != nil || left.Services != nil {
		r.Record.Restore = &left
	}
	if all != nil {
		all = fmt.Errorf("restore after the reset of a GPU: %w", all)
	}
	return errors.Join(all, node.KeepRemedies(r.Node, r.Record, false))
}

func (r *Repair) start(service string) error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreLimit)
	defer cancel()
	_, err := r.run(ctx, []string{"systemctl", "start", service}, nil)
	return err
}

// restoreModes sets the modes of a GPU that have changed. again is set if a later try can help.
func (r *Repair) restoreModes(ctx context.Context, gpu remedy.Modes) (again bool, err error) {
	now, err := r.modes(ctx, gpu.GPU)
	if err != nil {
		return true, err
	}
	for i, mode := range gpuModes {
		was := gpu.Values[i]
		switch {
		case now[i] == was || strings.HasPrefix(was, "["): // "[N/A]": unknown before the reset
		case mode.option == "":
			err = errors.Join(err, fmt.Errorf("%s of %s was %s and is %s now: set it again", mode.name, gpu.GPU, was, now[i]))
		default:
			if _, failed := r.run(ctx, []string{"nvidia-smi", "-i", gpu.GPU, mode.option, mode.value(was)}, nil); failed != nil {
				again, err = true, errors.Join(err, failed)
			}
		}
	}
	return again, err
}
