package status

// DeviceInfoVersion is the version of the Device Information Specification
// that [DeviceInfo] follows.
const DeviceInfoVersion = "1.1.0"

// A DeviceInfo is the "device-info" of a [Network], in the JSON form of the
// Network Plumbing Working Group's Device Information Specification, which is
// also that of the files in which device plugins and CNI plugins leave it. At most
// one of the pointers is set: the one that Type names. Reading a file into a
// DeviceInfo drops unknown keys. Goroutines may share a DeviceInfo that none of
// them changes.
type DeviceInfo struct {
	Type      string       `json:"type,omitempty"`    // "pci", "vdpa", "vhost-user" or "memif"
	Version   string       `json:"version,omitempty"` // of the specification, as [DeviceInfoVersion]
	PCI       *PCIDevice   `json:"pci,omitempty"`
	VDPA      *VDPADevice  `json:"vdpa,omitempty"`
	VhostUser *VhostDevice `json:"vhost-user,omitempty"`
	Memif     *MemifDevice `json:"memif,omitempty"`
}

// A PCIDevice is a PCI device. Addresses are like "0000:03:02.1"; what is not
// known is empty.
type PCIDevice struct {
	Address     string `json:"pci-address,omitempty"`
	VhostNet    string `json:"vhost-net,omitempty"`   // path of the vhost-net device
	RDMADevice  string `json:"rdma-device,omitempty"` // name
	PFAddress   string `json:"pf-pci-address,omitempty"`
	Representor string `json:"representor-device,omitempty"` // name
}

// A VDPADevice is a virtio data path acceleration device; what is not known is
// empty.
type VDPADevice struct {
	Parent      string `json:"parent-device,omitempty"`
	Driver      string `json:"driver,omitempty"` // "vhost" or "virtio"
	Path        string `json:"path,omitempty"`
	Address     string `json:"pci-address,omitempty"`
	PFAddress   string `json:"pf-pci-address,omitempty"`
	Representor string `json:"representor-device,omitempty"`
}

// A VhostDevice is a vhost-user socket; what is not known is empty.
type VhostDevice struct {
	Mode string `json:"mode,omitempty"` // "client" or "server"
	Path string `json:"path,omitempty"`
}

// A MemifDevice is a shared-memory packet interface; what is not known is
// empty.
type MemifDevice struct {
	Role string `json:"role,omitempty"` // "slave" or "master"
	Path string `json:"path,omitempty"`
	Mode string `json:"mode,omitempty"` // "ethernet", "ip" or "inject-punt"
}
