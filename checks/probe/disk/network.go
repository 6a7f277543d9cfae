package disk

import (
	"slices"
	"strings"
)

// networkModels are the models of volumes that a cloud attaches over its network, and that the kernel
// shows as disks on the PCI bus. They can be attached, detached and made read-only at any time.
var networkModels = []string{
	"Amazon Elastic Block Store", // AWS, "Amazon EBS volumes and NVMe"; amazon-ec2-utils, udev rules of ec2nvme-nsid
	"MSFT NVMe Accelerator v1.0", // Azure, azure-vm-utils, README: "remote NVMe disks attached to the VM"
	"nvme_card-pd",               // Google Cloud, guest-configs, google_nvme_id: persistent disks; local ones are nvme_card
}

// IsNetwork reports whether a model is that of a volume of a cloud, not of a disk in the machine. Older
// kernels pad it with blanks.
func IsNetwork(model string) bool { return slices.Contains(networkModels, strings.TrimSpace(model)) }
