package repair

import (
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

// gpuModes are settings of a GPU that a reset loses, by the names of nvidia-smi --query-gpu.
var gpuModes = []string{"persistence_mode", "power.limit", "compute_mode", "accounting.mode", "mig.mode.current"}

// resetGPUs resets the GPUs of faults. What it stops for that is stored first, and started again in any
// case.
func (r *Repair) resetGPUs(ctx context.Context, next *remedy.Next) error {
	var ids []string
	for _, f := range next.Faults {
		id := f.Device.UUID
		if id == "" {
			id = f.Device.PCI
		}
		if id == "" {
			return fmt.Errorf("%s: neither UUID nor PCI address of the GPU is known", f)
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	before := map[string][]string{}
	restore := remedy.Restore{Boot: slurm.BootID()}
	for _, id := range ids {
		modes, err := r.modes(ctx, id)
		if err != nil {
			return err
		}
		if before[id] = modes; modes[0] == "Enabled" {
			restore.Persistent = append(restore.Persistent, id)
		}
	}
	for _, service := range next.Services {
		if _, err := r.output(ctx, []string{"systemctl", "is-active", "--quiet", service}, nil); err == nil {
			restore.Services = append(restore.Services, service)
		}
	}
	r.Record.Restore = &restore
	if err := node.KeepRemedies(r.Node, r.Record); err != nil {
		return err
	}
	return errors.Join(r.reset(ctx, ids, restore), r.restore(), r.putBack(ctx, ids, before))
}

// modes returns the values of gpuModes of a GPU.
func (r *Repair) modes(ctx context.Context, id string) ([]string, error) {
	argv := []string{"nvidia-smi", "--query-gpu=" + strings.Join(gpuModes, ","), "--format=csv,noheader,nounits", "-i", id}
	out, err := r.output(ctx, argv, nil)
	if err != nil {
		return nil, err
	}
	modes := strings.Split(out, ", ")
	if len(modes) != len(gpuModes) {
		return nil, fmt.Errorf("run %s: want %d values, got %q", strings.Join(argv, " "), len(gpuModes), out)
	}
	return modes, nil
}

// reset stops what uses the GPUs by the site's permission, and resets them. Persistence mode alone would
// be a user of the GPU.
func (r *Repair) reset(ctx context.Context, ids []string, stop remedy.Restore) error {
	for _, service := range stop.Services {
		if err := r.exec(ctx, []string{"systemctl", "stop", service}, nil); err != nil {
			return err
		}
	}
	for _, id := range stop.Persistent {
		if err := r.exec(ctx, []string{"nvidia-smi", "-i", id, "-pm", "0"}, nil); err != nil {
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
	argv := []string{"nvidia-smi", "--gpu-reset", "-i", strings.Join(ids, ",")}
	err = r.exec(ctx, argv, nil)
	var f *failure
	if errors.As(err, &f) && resetStatus[f.Status] != "" {
		return fmt.Errorf("%s: %w", resetStatus[f.Status], err)
	}
	return err
}

// restore starts the services and modes that the reset of a GPU has stopped, and forgets them. Those
// that cannot be started are tried again before the next remedy of this boot.
func (r *Repair) restore() error {
	stopped := r.Record.Restore
	if stopped == nil {
		return nil
	}
	left := remedy.Restore{Boot: stopped.Boot}
	if stopped.Boot != slurm.BootID() { // a boot has started everything
		*stopped = left
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var all error
	for _, id := range stopped.Persistent {
		if err := r.exec(ctx, []string{"nvidia-smi", "-i", id, "-pm", "1"}, nil); err != nil {
			all, left.Persistent = errors.Join(all, err), append(left.Persistent, id)
		}
	}
	for _, service := range stopped.Services {
		if err := r.exec(ctx, []string{"systemctl", "start", service}, nil); err != nil {
			all, left.Services = errors.Join(all, err), append(left.Services, service)
		}
	}
	if r.Record.Restore = nil; all != nil {
		r.Record.Restore = &left
		all = fmt.Errorf("start again after the reset of a GPU: %w", all)
	}
	return errors.Join(all, node.KeepRemedies(r.Node, r.Record))
}

// putBack sets the modes that a reset has lost, and names those that it cannot set.
func (r *Repair) putBack(ctx context.Context, ids []string, before map[string][]string) error {
	var all error
	for _, id := range ids {
		now, err := r.modes(ctx, id)
		if err != nil {
			all = errors.Join(all, err)
			continue
		}
		for i, name := range gpuModes {
			was := before[id][i]
			if now[i] == was || strings.HasPrefix(was, "[") || name == "persistence_mode" { // "[N/A]": unknown before the reset
				continue
			}
			switch name {
			case "power.limit":
				err = r.exec(ctx, []string{"nvidia-smi", "-i", id, "-pl", was}, nil)
			case "compute_mode":
				err = r.exec(ctx, []string{"nvidia-smi", "-i", id, "-c", strings.ToUpper(was)}, nil)
			case "accounting.mode":
				err = r.exec(ctx, []string{"nvidia-smi", "-i", id, "-am", map[bool]string{true: "1", false: "0"}[was == "Enabled"]}, nil)
			default:
				err = fmt.Errorf("%s of %s was %s and is %s after the reset: set it again", name, id, was, now[i])
			}
			all = errors.Join(all, err)
		}
	}
	return all
}
