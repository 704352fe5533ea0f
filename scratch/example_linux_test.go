package scratch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

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
