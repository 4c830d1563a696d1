// Classifies two images with libdigits.a. Tensors are in C's memory, which Go's collector does not move.
package main

// #cgo LDFLAGS: -ldigits -lpthread
// #include <stdlib.h>
// #include "digits.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func fail() {
	fmt.Fprintln(os.Stderr, "error", C.GoString(C.smelt_error()))
	os.Exit(1)
}

// A C array of floats as a slice.
func floats(count int) []float32 {
	return unsafe.Slice((*float32)(C.calloc(C.size_t(count), 4)), count)
}

func tensor(data []float32, sizes ...int64) C.smelt_tensor {
	made := C.smelt_tensor{dtype: C.SMELT_F32, rank: C.int32_t(len(sizes))}
	for axis, size := range sizes {
		made.sizes[axis] = C.int64_t(size)
	}
	made.data, made.bytes = unsafe.Pointer(&data[0]), C.int64_t(4*len(data))
	return made
}

func main() {
	var model *C.smelt_model
	if C.digits_create(nil, &model) != 0 {
		fail()
	}
	defer C.smelt_model_destroy(model)

	pixels, results := floats(2*64), floats(2*10) // the second image is a vertical stroke
	for row := 0; row < 8; row++ {
		pixels[64+row*8+3], pixels[64+row*8+4] = 15, 15
	}
	input, output := tensor(pixels, 2, 64), tensor(results, 2, 10)
	if C.smelt_model_call(model, &input, &output) != 0 {
		fail()
	}
	for image := 0; image < 2; image++ {
		scores, best := results[10*image:10*image+10], 0
		for digit, score := range scores {
			if score > scores[best] {
				best = digit
			}
		}
		fmt.Printf("image %d: %d (%.3f)\n", image, best, scores[best])
	}

	input.sizes[1] = 63 // too narrow
	status := C.smelt_model_call(model, &input, &output)
	fmt.Printf("status %d: %s\n", status, C.GoString(C.smelt_error()))
}
