package power

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Device is a loop device for a file. The kernel takes it apart when nobody has it open,
// also after a kill.
type Device struct {
	Path string
	file *os.File
}

// Attach makes a loop device, of blocks of 4 KiB, for a regular file.
func Attach(path string) (*Device, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	file, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // a file of Serve
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: blockSize} //nolint:gosec // a descriptor
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
			return &Device{device.Name(), device}, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) { // otherwise somebody was quicker
			return nil, fmt.Errorf("attach %s to %s: %w", path, device.Name(), err)
		}
	}
}

// Close detaches the file, when the device is not mounted any more.
func (d *Device) Close() error { return d.file.Close() }
