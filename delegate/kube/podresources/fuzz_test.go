package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzCheckpoint shows that a checkpoint has one meaning, or is refused.
func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["a"],"-1":["b"]}}]},"Checksum":1}`), "u")
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"b"},{"PodUID":"u","ContainerName":"a","DeviceIDs":null}]}}`), "u")
	f.Add([]byte(`{"Data":null}`), "")
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		containers, err := parseCheckpoint(data, uid)
		again, errAgain := parseCheckpoint(data, uid)
		if diff := cmp.Diff(containers, again); diff != "" || (err == nil) != (errAgain == nil) {
			t.Error(diff, err, errAgain)
		}
		if err != nil && containers != nil {
			t.Error("an error with devices")
		}
	})
}
