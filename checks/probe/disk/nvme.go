// Package disk reads NVMe disks, and writes to file systems for a test.
package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NVMe is a controller, a directory of /sys/class/nvme. Values that the kernel does not show are ""
// or 0.
type NVMe struct {
	Name       string // nvme3
	PCI        string // 0000:43:00.0; "" if it is connected over a network
	State      string // live, new, resetting, connecting, deleting, dead
	Transport  string // pcie, tcp, rdma
	Model      string
	Serial     string
	Firmware   string
	NameSpaces []NameSpace

	Err error // why a value above is missing
}

// NameSpace is a disk of a controller.
type NameSpace struct {
	Name    string // nvme3n1
	Sectors uint64 // of 512 bytes
	RO      bool   // the kernel refuses to write to it
}

// Heat has the temperatures of a controller, from its directory hwmonN.
type Heat struct {
	Celsius  float64
	Critical float64 // limit above which it protects itself; 0 if unknown
}

const nvmeClass = "/sys/class/nvme"

// NVMes lists the controllers by number, none without a driver. It lists a controller that it
// cannot read with its error. It does not read the temperature, because a faulty controller may not
// answer, see [NVMeHeat]. doing may be nil.
func NVMes(h *probe.Host, doing func(string)) ([]NVMe, error) {
	return probe.Once(h, "nvmes", func() (list []NVMe, err error) {
		names, err := h.Names(nvmeClass)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		for _, name := range names {
			if number, ok := strings.CutPrefix(name, "nvme"); !ok || probe.NotNumber(number) {
				continue
			}
			if err := h.StuckAt(nvmeClass + "/" + name); err != nil {
				list = append(list, NVMe{Name: name, Err: err})
				continue
			}
			if doing != nil {
				doing("read " + nvmeClass + "/" + name)
			}
			list = append(list, readNVMe(h, name))
		}
		return list, err
	})
}

func readNVMe(h *probe.Host, name string) NVMe {
	dir := nvmeClass + "/" + name
	d := NVMe{Name: name}
	parts, err := h.Names(dir)
	if err != nil {
		d.Err = err
		return d
	}
	d.State, d.Transport = h.Word(dir, "state", &d.Err), h.Word(dir, "transport", &d.Err)
	d.Model, d.Serial, d.Firmware = h.Word(dir, "model", &d.Err), h.Word(dir, "serial", &d.Err), h.Word(dir, "firmware_rev", &d.Err)
	if link, err := os.Readlink(h.Path(dir + "/device")); err == nil && strings.Count(filepath.Base(link), ":") == 2 {
		d.PCI = filepath.Base(link)
	}
	for _, p := range parts {
		if !isNameSpace(p) {
			continue
		}
		text := h.Word(dir+"/"+p, "size", &d.Err)
		n, err := strconv.ParseUint(text, 10, 64)
		if text != "" && err != nil {
			d.Err = errors.Join(d.Err, &fs.PathError{Op: "parse", Path: dir + "/" + p + "/size", Err: fs.ErrInvalid})
		}
		if err == nil {
			d.NameSpaces = append(d.NameSpaces, NameSpace{p, n, h.Word(dir+"/"+p, "ro", &d.Err) == "1"})
		}
	}
	if d.State == "" && d.Err == nil { // it was removed after its directory was listed
		d.Err = &fs.PathError{Op: "read", Path: dir + "/state", Err: fs.ErrNotExist}
	}
	return d
}

// isNameSpace reports whether a name is nvme0n1, or nvme0c1n1 of a disk with several paths.
func isNameSpace(name string) bool {
	rest, ok := strings.CutPrefix(name, "nvme")
	head, number, found := strings.Cut(rest, "n")
	subsystem, controller, several := strings.Cut(head, "c")
	return ok && found && !probe.NotNumber(number) && !probe.NotNumber(subsystem) && (!several || !probe.NotNumber(controller))
}

// NVMeHeat reads the temperature of a controller, nil if the kernel does not show it. It may block
// as long as the controller does not answer.
func NVMeHeat(h *probe.Host, name string) (*Heat, error) {
	dir := nvmeClass + "/" + name
	parts, err := h.Names(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		number, ok := strings.CutPrefix(p, "hwmon")
		if !ok || probe.NotNumber(number) {
			continue
		}
		text, err := h.ReadValue(dir + "/" + p + "/temp1_input")
		if err != nil {
			return nil, err
		}
		now, err := parseMilli(text)
		if err != nil {
			return nil, &fs.PathError{Op: "parse", Path: dir + "/" + p + "/temp1_input", Err: err}
		}
		heat := &Heat{Celsius: now}
		if text, err := h.ReadValue(dir + "/" + p + "/temp1_crit"); err == nil {
			heat.Critical, _ = parseMilli(text)
		}
		return heat, nil
	}
	return nil, nil
}

// parseMilli parses thousandths.
func parseMilli(text string) (float64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil {
		return 0, fs.ErrInvalid
	}
	return float64(n) / 1000, nil
}

// SMART is a controller's health log: log page 02h of the NVM Express base specification.
type SMART struct {
	Warning     byte    // critical warning, bits Warn...
	Celsius     float64 // composite temperature; NaN if unknown
	Spare       int     // percent of the spare blocks that are left
	SpareLimit  int     // the vendor's limit of Spare
	Used        int     // percent of the vendor's estimated life; may be above 100, 255 means more
	MediaErrors uint64  // failed reads and writes of data; the largest number if there are more
}

// These are the bits of SMART.Warning.
const (
	WarnSpare       = 1 << iota // spare blocks below the limit
	WarnTemperature             // above, or below, a limit
	WarnDegraded                // reliability is degraded: many media errors, or an internal one
	WarnReadOnly                // media is read-only
	WarnBackup                  // the backup of volatile memory has failed
	WarnPMR                     // the persistent memory region is read-only or unreliable
)

// ErrNoSMART means that a disk has no health log, for example in a virtual machine.
var ErrNoSMART = errors.New("the controller has no health log")

const smartSize = 512

// NVMeSMART reads the health log of a controller. Below another root /dev/nvmeN is a recorded page,
// a regular file. It may block as long as the controller does not answer, unless the kernel gives
// up first.
func NVMeSMART(h *probe.Host, name string) (SMART, error) {
	file := "/dev/" + name
	fd, err := probe.Retry(func() (int, error) {
		return unix.Open(h.Path(file), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return SMART{}, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return SMART{}, &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	page := make([]byte, smartSize)
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR && !h.Recorded():
		if err := readSMARTPage(fd, page); err != nil {
			return SMART{}, fmt.Errorf("read the health log of %s: %w", file, err)
		}
	case kind == unix.S_IFREG && h.Recorded():
		n, err := probe.Read(fd, page)
		if err != nil {
			return SMART{}, &fs.PathError{Op: "read", Path: file, Err: err}
		}
		page = page[:n]
	default:
		return SMART{}, &fs.PathError{Op: "read", Path: file, Err: errors.New("not a disk")}
	}
	s, err := parseSMART(page)
	if err != nil {
		return s, &fs.PathError{Op: "parse", Path: file, Err: err}
	}
	return s, nil
}

// parseSMART parses the page. A page of zeros is invalid: a disk at 0 K.
func parseSMART(page []byte) (s SMART, err error) {
	if len(page) != smartSize {
		return s, fmt.Errorf("%d bytes, want %d", len(page), smartSize)
	}
	kelvin := int(binary.LittleEndian.Uint16(page[1:]))
	s = SMART{Warning: page[0], Spare: int(page[3]), SpareLimit: int(page[4]), Used: int(page[5]), Celsius: math.NaN()}
	if kelvin == 0 && s.Spare == 0 && s.SpareLimit == 0 && s.Used == 0 && s.Warning == 0 {
		return s, ErrNoSMART
	}
	if s.Spare > 100 || s.SpareLimit > 100 {
		return s, fmt.Errorf("spare blocks of %d %%, limit %d %%", s.Spare, s.SpareLimit)
	}
	if kelvin > 0 {
		s.Celsius = float64(kelvin) - 273
	}
	s.MediaErrors = binary.LittleEndian.Uint64(page[160:])
	if binary.LittleEndian.Uint64(page[168:]) != 0 {
		s.MediaErrors = math.MaxUint64
	}
	return s, nil
}

// adminCommand is struct nvme_passthru_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags        uint8
	_                    uint16
	nsid, cdw2, cdw3     uint32
	metadata, addr       uint64
	metadataLen, dataLen uint32
	cdw10, cdw11         uint32
	cdw12, cdw13         uint32
	cdw14, cdw15         uint32
	timeoutMilli, result uint32
}

const (
	ioctlAdmin  = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD, _IOWR('N', 0x41, struct of 72 bytes)
	getLogPage  = 0x02
	smartLog    = 0x02
	allSpaces   = 0xffffffff
	smartMillis = 3000 // after that the kernel aborts the command

	// These status codes mean that the log does not exist: Invalid Opcode, Invalid Field, Invalid
	// Log Page; the higher bits mean "do not retry" and "more".
	statusOpcode, statusField, statusLog, statusMask = 0x01, 0x02, 0x109, 0x7ff
)

// readSMARTPage reads the page from the controller. It changes nothing.
func readSMARTPage(fd int, page []byte) error {
	var pin runtime.Pinner
	pin.Pin(&page[0]) // the kernel gets its address as a number
	defer pin.Unpin()
	c := adminCommand{
		opcode: getLogPage, nsid: allSpaces, addr: uint64(uintptr(unsafe.Pointer(&page[0]))), dataLen: smartSize,
		cdw10: smartLog | (smartSize/4-1)<<16, timeoutMilli: smartMillis,
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlAdmin, uintptr(unsafe.Pointer(&c)))
	switch {
	case errno != 0:
		return errno
	case status&statusMask == statusOpcode, status&statusMask == statusField, status&statusMask == statusLog:
		return ErrNoSMART
	case status != 0:
		return fmt.Errorf("NVMe status %#x", status)
	}
	return nil
}
