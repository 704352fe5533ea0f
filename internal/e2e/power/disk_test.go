package power

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// blockSize is the sector of the device: what it writes whole or not at all.
const blockSize = 4 << 10

type block = *[blockSize]byte

// An entry of the log is a block that was written or, without data, a flush.
type entry struct {
	at   int64 // number of the block
	data block
}

// A Disk is a file of [Serve]. Blocks that were never written are zero.
type Disk struct {
	fs.Inode
	size int64

	mu     sync.Mutex
	blocks map[int64]block // what was written here is never changed, so that disks may share it
	below  map[int64]block // where blocks has none
	safe   map[int64]block // before the log
	log    []entry
}

// NewDisk returns an empty disk of that many bytes.
func NewDisk(size int64) *Disk { return &Disk{size: size, blocks: make(map[int64]block)} }

// Begin begins the log: what was written before survives.
func (d *Disk) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.safe, d.log = maps.Clone(d.blocks), nil
}

// Position is how much has been written and flushed since Begin.
func (d *Disk) Position() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

// show makes the disk one with these blocks above those below.
func (d *Disk) show(blocks, below map[int64]block) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks, d.below, d.log = blocks, below, nil
}

// Serve mounts the disks as files at dir, named by their index, until stop. The mount ends with
// the process. Only other processes may use the files: one that serves a file it waits for itself
// cannot be killed.
func Serve(dir string, disks ...*Disk) (stop func() error, err error) {
	// Children do not inherit the connection: the disks end with this process. go-fuse, which
	// opens it otherwise, would leave it to them.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("power", dir, "fuse.power", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount FUSE: %w", err), unix.Close(fd))
	}
	root := &fs.Inode{}
	server, err := fs.Mount(fmt.Sprint("/dev/fd/", fd), root, &fs.Options{
		MountOptions: fuse.MountOptions{MaxWrite: 512 << 10},
		OnAdd: func(ctx context.Context) {
			for i, d := range disks {
				root.AddChild(fmt.Sprint(i), root.NewPersistentInode(ctx, d, fs.StableAttr{Mode: syscall.S_IFREG}), true)
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
	}
	return func() error {
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if err == nil {
			server.Wait()
		}
		return err
	}, nil
}

// Open keeps the kernel from caching the file: what is written has arrived here.
func (d *Disk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, fs.OK
}

// Getattr tells the size.
func (d *Disk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = syscall.S_IFREG|0o600, uint64(d.size) //nolint:gosec // it is positive
	return fs.OK
}

// Read reads blocks.
func (d *Disk) Read(_ context.Context, _ fs.FileHandle, to []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to = to[:max(0, min(int64(len(to)), d.size-offset))]
	for part := range slices.Chunk(to, blockSize) {
		b := d.blocks[offset/blockSize]
		if b == nil {
			b = d.below[offset/blockSize]
		}
		clear(part)
		if b != nil {
			copy(part, b[:])
		}
		offset += blockSize
	}
	return fuse.ReadResultData(to), fs.OK
}

// Write writes blocks, and notes each in the log.
func (d *Disk) Write(_ context.Context, _ fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	if offset%blockSize != 0 || len(data)%blockSize != 0 {
		return 0, syscall.EINVAL // the device has sectors of that size
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for part := range slices.Chunk(data, blockSize) {
		e := entry{offset / blockSize, new([blockSize]byte)}
		copy(e.data[:], part)
		d.blocks[e.at] = e.data
		d.log = append(d.log, e)
		offset += blockSize
	}
	return uint32(len(data)), fs.OK //nolint:gosec // a message of FUSE
}

// Fsync is the flush of a loop device.
func (d *Disk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, entry{})
	return fs.OK
}

// Allocate says that the disk cannot discard blocks.
func (d *Disk) Allocate(context.Context, fs.FileHandle, uint64, uint64, uint32) syscall.Errno {
	return syscall.EOPNOTSUPP
}
