package scratch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/scratch"
)

// An attachment's life: written down before it is made, again when it is made,
// and forgotten when it is gone.
func Example() {
	dir, err := os.MkdirTemp("", "scratch")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	ctx := context.Background() // a plugin's main has one that ends with its signals
	store := scratch.Store[string]{Dir: dir}
	k := scratch.Key{Network: "blue", ContainerID: "c0ffee", IfName: "eth0"}

	lock, err := store.Lock(ctx, k.ContainerID)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock()

	// ADD: the intent survives a loss of power, ...
	fmt.Println("put:", store.Put(lock, scratch.Record[string]{Key: k, State: scratch.Planned, Value: "bridge, please"}))
	// ... the outcome the end of the process.
	r, _ := store.Get(k)
	r.State, r.Value = scratch.Added, "bridge, 10.1.2.3"
	fmt.Println("note:", store.Note(lock, r))

	// DEL: the first try fails, and so the record stays for the second.
	del := func(err error) error {
		return store.Consume(ctx, lock, k, func(_ context.Context, r scratch.Record[string]) error {
			fmt.Println("detach", r.State, r.Value)
			return err
		})
	}
	fmt.Println("consume:", del(errors.New("bridge is busy")))
	fmt.Println("consume:", del(nil))
	_, err = store.Get(k)
	fmt.Println("gone:", errors.Is(err, fs.ErrNotExist))
	// Output:
	// put: <nil>
	// note: <nil>
	// detach added bridge, 10.1.2.3
	// consume: bridge is busy
	// detach added bridge, 10.1.2.3
	// consume: <nil>
	// gone: true
}

// Damage is found by those who read, stays reported, and harms nobody else.
func ExampleStore_List() {
	dir, err := os.MkdirTemp("", "scratch")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	store := scratch.Store[int]{Dir: dir}
	ctx := context.Background()
	for i, id := range []string{"c1", "c2", "c3"} {
		lock, err := store.Lock(ctx, id)
		if err != nil {
			fmt.Println(err)
			return
		}
		k := scratch.Key{Network: "blue", ContainerID: id, IfName: "eth0"}
		if err := store.Put(lock, scratch.Record[int]{Key: k, State: scratch.Planned, Value: i}); err != nil {
			fmt.Println(err)
		}
		lock.Unlock()
	}
	if err := os.Truncate(dir+"/c2@blue@eth0.json", 50); err != nil {
		fmt.Println(err)
	}
	var damaged scratch.Key
	for r, err := range store.List(ctx) {
		if e := (*scratch.Error)(nil); errors.As(err, &e) {
			fmt.Println(e.Key, "corrupt:", errors.Is(err, scratch.ErrCorrupt), "code:", e.CNICode())
			damaged = e.Key
			continue
		}
		fmt.Println(r.Key, r.Value)
	}
	lock, err := store.Lock(ctx, damaged.ContainerID)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock()
	fmt.Println("forget:", store.Forget(lock, damaged))
	// Output:
	// blue/c1/eth0 0
	// blue/c2/eth0 corrupt: true code: 5
	// blue/c3/eth0 2
	// forget: <nil>
}

// A plugin that is replaced by this one kept the delegate's configuration in a file
// of its own. Its format is kept, so that the plugin can be put back.
func ExampleWriteFile() {
	dir, err := os.MkdirTemp("", "flannel")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	file := filepath.Join(dir, "c0ffee") // the container's ID
	fmt.Println("write:", scratch.WriteFile(file, []byte(`{"type":"bridge","mtu":1450}`)))
	fmt.Println("replace:", scratch.WriteFile(file, []byte(`{"type":"bridge","mtu":1400}`)))
	data, err := os.ReadFile(file)
	fmt.Println(string(data), err)
	// Output:
	// write: <nil>
	// replace: <nil>
	// {"type":"bridge","mtu":1400} <nil>
}
